"""Machines: declared, emulated, detected, saved; and what each error says."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from autopar.costs import detect as detecting
from autopar.costs.detect import detect
from autopar.errors import DeviceError, PlanError
from autopar.ir.device import Device, Link
from autopar.ir.hardware import BUSES, CHIPS
from autopar.ir.machine import Machine
from autopar.system import cache

CPU = Device("cpu", "cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_each_chip_has_a_source_and_figures_that_hang_together(chip):
    assert "NVIDIA" in chip.source or "AMD" in chip.source
    rates = dict(chip.tflops)
    assert rates["float64"] <= rates["float32"]
    if chip.kind != "cpu":
        assert rates["float16"] >= rates["float32"]
        assert chip.bus in BUSES and (not chip.peer_bus or BUSES[chip.peer_bus].peer)
        assert chip.bytes_per_s > BUSES[chip.bus].bytes_per_s
    device = chip.device("d")
    assert 0.5 < device.flops_per_s("float32") / (rates["float32"] * 1e12) < 1
    assert device.bytes_per_s < chip.bytes_per_s


def test_declared_devices_are_named_in_order_and_all_linked():
    machine = Machine.declare("cpu", "h100-sxm", "h100-sxm", "t4")
    assert list(machine.device) == ["cpu", "cuda:0", "cuda:1", "cuda:2"]
    assert machine.absent and machine.label == "declared machine, not run"
    names = list(machine.device)
    assert set(machine.link) == {(a, b) for a in names for b in names if a != b}
    assert all(link.wire for link in machine.links)


def test_described_devices_keep_their_own_names_and_figures():
    own = Device("npu:0", "npu", memory_bytes=5, bytes_per_s=1e11)
    machine = Machine.declare("cpu-64", own, "l4")
    assert list(machine.device) == ["cpu", "npu:0", "cuda:0"]
    assert machine.device["npu:0"] == own
    assert machine.route("npu:0", "cuda:0")


def test_accelerators_of_a_kind_talk_over_their_own_bus_and_others_over_the_slower_host_bus():
    machine = Machine.declare("cpu", "h100-sxm", "h100-sxm", "t4")
    link = machine.link
    assert link["cuda:0", "cuda:1"].bytes_per_s > link["cpu", "cuda:0"].bytes_per_s
    assert (
        link["cuda:0", "cuda:2"].bytes_per_s
        == link["cpu", "cuda:2"].bytes_per_s
        < link["cpu", "cuda:0"].bytes_per_s
    )


def test_each_direction_of_each_accelerator_is_a_wire_of_its_own():
    link = Machine.declare("cpu", "t4", "t4").link
    wires = [
        link[pair].wire
        for pair in (("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cpu", "cuda:1"), ("cuda:1", "cpu"))
    ]
    assert len(set(wires)) == 4
    # Without a bus of their own a copy between two shares the way out with copies to the host.
    assert link["cuda:0", "cuda:1"].wire == link["cuda:0", "cpu"].wire


def test_a_bus_and_caps_can_be_given():
    plain = Machine.declare("cpu", "t4", "t4")
    fast = Machine.declare(
        "cpu", "t4", "t4", bus=["pcie5", "nvlink4"], memory={"cuda:0": "6GiB", "cuda:1": 1000}
    )
    assert fast.link["cpu", "cuda:0"].bytes_per_s > plain.link["cpu", "cuda:0"].bytes_per_s
    assert fast.link["cuda:0", "cuda:1"].bytes_per_s > fast.link["cpu", "cuda:0"].bytes_per_s
    assert fast.device["cuda:0"].memory_bytes == 6 << 30 and fast.device["cuda:1"].memory_bytes == 1000


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Machine.declare("cpu", "h1000-sxm"), r"no chip 'h1000-sxm'.*mean 'h100-sxm'.*known are"),
        (lambda: Machine.declare("cpu", "zx81"), r"no chip 'zx81' is known; known are"),
        (lambda: Machine.declare("cpu", "t4", bus="pcie9"), r"no bus 'pcie9'.*did you mean 'pcie"),
        (lambda: Machine.declare("cpu", memory={"cuda:1": "6GiB"}), r"no device 'cuda:1'.*it has cpu$"),
        (lambda: Machine.declare("cpu", "t4", memory={"cuda:0": "six"}), r"'six' is not an amount of memory"),
        (lambda: Machine.declare("cpu", "cpu-64"), r"one CPU device"),
        (lambda: Machine.declare("t4", Device("cuda:0", "cuda")), r"'cuda:0' is listed twice"),
        (lambda: Machine.declare(), r"the chip list is empty"),
        (lambda: Machine.emulate("cpu", "t4", slow_down=0), r"slow_down is a number above 0"),
        (lambda: Machine((Device("a", "cuda"),), (Link("a", "b", 0, 1, None),)), r"names 'b'"),
        (lambda: Machine((Device("a", "cuda", lanes=0),)), r"has 0 lanes"),
        (lambda: Machine(["cpu", "cuda:0"]), r"is not a tuple of Device; for names write Machine\.declare"),
        (lambda: Machine(3), r"devices=3 is not a tuple of Device"),
        (lambda: Machine((replace(CPU, bytes_per_s=0),)), r"'cpu' needs bytes_per_s and flops > 0"),
        (lambda: Machine((replace(CPU, flops=(("float32", float("nan")),)),)), r"'cpu' needs bytes_per_s"),
        (lambda: Machine((replace(CPU, memory_bytes=-1),)), r"memory_bytes ≥ 0"),
        (lambda: Machine((CPU,), (Link("cpu", "cpu", 0.0, float("nan"), None),)), r"bytes_per_s > 0"),
        (
            lambda: Machine.declare(["cpu-16", "t4"]),
            r"\['cpu-16', 't4'\] is not a chip; write the names one by",
        ),
        (lambda: Machine.declare(None), r"None is not a chip"),
        (lambda: Machine.declare("cpu", "t4", bus=3), r"no bus '3' is known"),
        (lambda: Machine.declare("cpu", "t4", memory="6GiB"), r"names no device; write memory="),
        (lambda: Machine.emulate("cpu", "t4", slow_down=True), r"slow_down is a number above 0"),
        (lambda: Machine.emulate("cpu", "t4", slow_down=float("inf")), r"slow_down is a number above 0"),
    ],
)  # fmt: skip
def test_errors_of_descriptions(call, text):
    with pytest.raises(DeviceError, match=text):
        call().check()


def test_an_emulated_machine_says_so_and_leaves_its_slow_down_to_be_chosen():
    machine = Machine.emulate("cpu", "t4", "t4")
    assert list(machine.device) == ["cpu", "emulated:0", "emulated:1"]
    assert machine.clock == "declared" and machine.slow_down == 0 and "EMULATED" in machine.label
    assert "× 40" in Machine.emulate("cpu", "t4", slow_down=40).label
    lanes = sum(device.lanes for device in machine.devices)
    assert machine.devices[0].threads * lanes <= max(lanes, os.cpu_count() or 1)
    declared = Machine.declare("cpu", "t4", "t4")
    assert [d.flops for d in machine.devices] == [d.flops for d in declared.devices]


def test_a_machine_survives_being_saved(tmp_path):
    for machine in (Machine.declare("cpu", "b200", "b200"), Machine.emulate("cpu", "t4", slow_down=3)):
        machine.save(tmp_path / "m.json")
        assert Machine.load(tmp_path / "m.json") == machine


def test_files_that_hold_no_machine_are_refused(tmp_path):
    file = tmp_path / "m.json"
    for text, match in (("\x80pickle", "is not JSON"), ("[]", "is not an 'autopar machine 1' file")):
        file.write_text(text)
        with pytest.raises(DeviceError, match=match):
            Machine.load(file)
    file.write_text(json.dumps({"format": "autopar machine 1", "machine": {"devices": 3}}))
    with pytest.raises(PlanError, match="expected a list"):
        Machine.load(file)


@pytest.mark.slow
def test_declaring_needs_no_torch():
    code = "import sys; from autopar.ir.machine import Machine as M; M.declare('cpu', 't4'); M.emulate('cpu', 't4')"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_detecting_measures_once_and_keeps_it(folder, caplog):
    caplog.set_level(logging.INFO, "autopar")
    first = detect(["cpu", "emulated:0", "emulated:1"])
    assert "measured memcpy" in caplog.text
    caplog.clear()
    assert detect(["cpu", "emulated:0", "emulated:1"]) == first
    assert "measured" not in caplog.text
    assert first.clock == "real" and "real clock" in first.label
    assert not list(folder.glob("*.part"))


@pytest.mark.slow
def test_lanes_share_the_threads_and_never_exceed_what_one_lane_with_all_would_do(folder):
    whole = detect(["cpu"]).device["cpu"]
    assert whole.threads == torch.get_num_threads() and whole.memory_bytes
    lanes = detect(["cpu*2"]).device["cpu"]
    assert lanes.lanes == 2 and lanes.threads == max(1, whole.threads // 2)
    assert 2 * lanes.flops_per_s("float32") <= whole.flops_per_s("float32") * (1 + 1e-9)
    emulated = [d for d in detect(["cpu", "emulated:0", "emulated:1"]).devices if d.kind == "emulated"]
    assert sum(d.bytes_per_s for d in emulated) <= whole.bytes_per_s * (1 + 1e-9)
    assert torch.get_num_threads() == whole.threads


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (
            ["cpu", "cuda:97"],
            r"no device 'cuda:97' here; this machine has cpu.*Machine\.declare.*\"emulated:97\"",
        ),
        (["cpu", "cpu"], r"'cpu' is listed twice; .*'cpu\*2'"),
        (["cpu", "cpu*2"], r"'cpu' is listed twice"),
        (["emulated:1", "emulated:1"], r"'emulated:1' is listed twice"),
        ([], r"device list is empty; give at least one"),
        (["tpu"], r"no device 'tpu:0' here; this machine has cpu"),
        (["cpuu"], r"no device 'cpuu:0' here \(did you mean 'cpu'\?\)"),
        (["emulated"], r"'emulated' has no index; write 'emulated:0'"),
        (["gpu #1"], r"'gpu #1' is not a device name; write \"cpu\""),
        (["cpu*0"], r"0 lanes"),
        ("cpu", r"a list of names, not 'cpu'; write \['cpu'\]"),
    ],
)
def test_errors_of_device_lists(folder, devices, text):
    with pytest.raises(DeviceError, match=text):
        detect(devices)


def test_a_device_stands_for_itself(folder):
    own = Device("cpu", "cpu", threads=1, bytes_per_s=1e9)
    assert detect([own]).device["cpu"] == own


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", '{"format": "other"}', '{"format": "autopar measurements 1"}']
)
def test_a_broken_cache_file_is_ignored_with_a_line(folder, caplog, text):
    file = cache.file_for("machine", ["x"])
    file.write_text(text)
    assert cache.load(file) == {}
    assert "ignored and taken again" in caplog.text
    cache.store(file, {"a": 1})
    assert cache.load(file) == {"a": 1}


def test_an_unwritable_cache_costs_only_a_line(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path / "file" / "below"))
    cache.store(cache.file_for("machine", []), {"a": 1})
    assert "measurements are not kept" in caplog.text


@pytest.mark.slow
def test_nonsense_figures_in_the_cache_are_measured_again(folder):
    detect(["cpu"])
    (file,) = folder.glob("machine-*.json")
    data = json.loads(file.read_text())
    data["entries"] = {name: {"bytes_per_s": -1} for name in data["entries"]}
    file.write_text(json.dumps(data))
    assert detect(["cpu"]).device["cpu"].bytes_per_s > 0


@pytest.mark.parametrize(
    ("text", "share"), [("1000\n", 1000), ("max\n", None), ("9223372036854771712\n", None), (None, None)]
)
def test_the_memory_of_a_host_is_what_its_container_may_use(monkeypatch, tmp_path, text, share):
    limit = tmp_path / "memory.max"
    if text is not None:
        limit.write_text(text)
    monkeypatch.setattr(detecting, "Path", lambda name: limit)
    fitted = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert detecting._host_memory() == (share or fitted)


def test_ranks_of_torchrun_share_the_accelerators_out(monkeypatch):
    def shares(here: int, ranks: int) -> list[tuple[str, ...]]:
        monkeypatch.setattr(
            detecting, "accelerators", lambda: tuple(f"cuda:{index}" for index in range(here))
        )
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        found = []
        for rank in range(ranks):
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            host, *own = detecting._auto()
            assert host == "cpu"
            found.append(tuple(own))
        return found

    assert shares(4, 1) == [("cuda:0", "cuda:1", "cuda:2", "cuda:3")]
    assert shares(4, 2) == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]
    assert shares(5, 2) == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]
    assert shares(2, 4) == [("cuda:0",), ("cuda:1",)] * 2
    assert shares(0, 2) == [(), ()]
