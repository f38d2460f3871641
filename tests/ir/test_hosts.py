"""Hosts from one line, and plans over them: what is read, checked, saved and refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar import DeviceError, PlanError
from autopar.ir.device import Link
from autopar.ir.distribution import Distribution, Stage
from autopar.ir.hardware import NETWORKS
from autopar.ir.hosts import Hosts, compute_devices


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from(sorted(NETWORKS)),
    st.integers(1, 8),
)
def test_a_declaration_has_as_many_hosts_and_devices_as_it_says(groups, network, ports):
    text = " + ".join(f"{count} x (cpu{f' + {gpus} h100' * bool(gpus)})" for count, gpus in groups)
    hosts = Hosts.declare(f"{text} over {ports} {network}")
    assert len(hosts.hosts) == sum(count for count, _ in groups)
    assert hosts.accelerators == sum(count * max(gpus, 1) for count, gpus in groups)
    rate = ports * NETWORKS[network].reached
    assert all(host.bytes_per_s == rate for host in hosts.hosts)
    assert rate < ports * NETWORKS[network].bytes_per_s
    assert all(set(compute_devices(h.machine)) <= set(h.machine.device) for h in hosts.hosts)
    assert ("NVIDIA H100 SXM" in str(hosts)) == any(gpus for _, gpus in groups)


def test_a_link_is_as_fast_as_its_slower_end_unless_it_was_measured():
    hosts = Hosts.declare("cpu + cpu over ethernet-10")
    slow = dataclasses.replace(hosts.hosts[1], bytes_per_s=1e6, latency_s=1.0)
    mixed = dataclasses.replace(hosts, hosts=(hosts.hosts[0], slow)).check()
    link = mixed.link("host0", "host1")
    assert (link.bytes_per_s, link.latency_s) == (1e6, 1.0)
    found = Link("host0", "host1", 0.5, 2e6, None)
    known = dataclasses.replace(mixed, links=(found,)).check()
    assert known.link("host0", "host1") is found and known.link("host1", "host0").latency_s == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2 x cpu", "names no network"),
        ("2 x cpu over ib-4", "did you mean 'ib-400'"),
        ("2 x (cpu + 8 h1) over ib-400", "did you mean 'h100'"),
        ("2 x (cpu over ib-400", "cannot read"),
        ("0 x cpu over ib-400", "are no hosts"),
        ("9999 x cpu over ib-400", "more than 4,096"),
        ("1 x (cpu + 1000000000 h100) over ib-400", "more than 1,024 chips"),
        ("2 x cpu over 0 ib-400", "names no network"),
        ("cpu + cpu", "one CPU device"),
        ("(cpu + h100) + cpu", "names no network"),
        (8, "is not text"),
    ],
)
def test_unreadable_declarations_are_refused_with_the_part_and_an_example(text, said):
    with pytest.raises(DeviceError, match=said):
        Hosts.declare(text)


def _distribution(**changes) -> Distribution:
    hosts = Hosts.declare("4 x cpu over ethernet-10")
    stages = (Stage(0, 3, 1.0, 2.0, 10, 20, 30), Stage(3, 4, 1.0, 2.0, 0, 20, 30))
    made = Distribution(
        "model", ("a", "b", "c", "d"), hosts, stages, (("host0", "host1"), ("host2", "host3")), 4, "1f1b", 16,
        15.0, 12.0, (100, 100),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def test_a_distribution_comes_back_from_its_file(tmp_path):
    made = _distribution().check()
    made.save(tmp_path / "plan.json")
    found = Distribution.load(tmp_path / "plan.json")
    assert found == made
    assert made.bubble == pytest.approx(0.2) and "2 replicas" in str(made)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule": "2f2b"}, "schedule='2f2b' is not known"),
        ({"stages": (Stage(0, 4, 1, 1, 1, 1, 1),)}, "1 stages cannot be shared out to 2"),
        ({"stages": (Stage(0, 2, 1, 1, 1, 1, 1), Stage(3, 4, 1, 1, 1, 1, 1))}, "must begin with 2"),
        ({"stages": (Stage(0, 2, 1, 1, 1, 1, 1), Stage(2, 3, 1, 1, 1, 1, 1))}, "end with unit 2 of 4"),
        ({"ranks": (("host0", "elsewhere"),)}, "no host 'elsewhere'"),
        ({"ranks": (("host0", "host1"), ("host2",))}, "same number of processes"),
        ({"batch": 20}, "20 rows cannot be 4 equal micro-batches"),
        ({"stages": tuple(Stage(i, i + 1, 1, 1, 1, 1, 1) for i in range(4))}, "one stage to a process"),
    ],
)
def test_invalid_distributions_are_refused(changes, said):
    with pytest.raises(PlanError, match=said):
        _distribution(**changes).check()
