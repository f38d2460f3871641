"""Replicas that share out their parameters by FSDP2: steps are those of one process, and memory is shared."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from dataclasses import replace

import pytest
import torch
from chains import even_chain, hosts
from helpers.grid import apart, grid
from helpers.job_models import ROWS, adam, alone, chained, job_of, loss, made, prepare, sgd, stepped, trained
from helpers.ranks import ranks
from torch import nn

from autopar import PlanError
from autopar.planner.pipelines import distribution

pytestmark = pytest.mark.slow

STEPS, FEWER = 50, 6
TIMEOUT_S = 120.0
"""Of ranks that gather and scatter some thousand times, which take turns on few cores."""


def _rows(shape) -> int:
    """Rows of a micro-batch of a replica."""
    return ROWS // shape[2] // shape[3]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _trains(rank: int, cases, steps: int) -> list:
    """Of each case losses here and of one process, the largest difference of weights, and the paths of this one."""
    found = []
    for name, *shape in cases:
        _, x, y = made(name)
        expected, plain = alone(name, steps)
        job = job_of(chained(name, _rows(shape))[0], *shape, "sharded")
        optimizer = sgd(job.parameters())
        losses = stepped(job, x, y, steps // 2, optimizer)
        job(x)  # Serving in between leaves the shards as they were.
        losses += stepped(job, x, y, steps - steps // 2, optimizer)
        state = plain.state_dict()
        weights = max(
            float((_whole(tensor) - state[path]).abs().max()) for path, tensor in job.state_dict().items()
        )
        found.append((losses, expected, weights, sorted(job.state_dict())))
    return found


TWO = [("cnn", 1, 1, 2, 1, "1f1b"), ("gpt of 1", 1, 1, 2, 2, "gpipe")]
# The embedding of gpt is its head: of both ends of the pipeline, and of two stages of one process.
FOUR = [("gpt of 1", 2, 1, 2, 2, "1f1b")]
MORE = [("cnn", 2, 2, 2, 2, "interleaved"), ("mlp", 1, 1, 4, 1, "1f1b")]


@pytest.mark.parametrize(
    ("count", "cases", "steps"),
    [
        (2, TWO, FEWER),
        (4, FOUR, FEWER),
        pytest.param(4, MORE, STEPS, marks=pytest.mark.grid),
        *grid("sharded", lambda name, count: (count, [(name, count // 2, 1, 2, 2, "1f1b")], STEPS)),
    ],
)
def test_steps_are_those_of_one_process(count, cases, steps, record_property):
    before = prepare, [(name, _rows(shape)) for name, *shape in cases], steps
    found = ranks(count, _trains, cases, steps, before=before, timeout_s=TIMEOUT_S)
    record_property("apart", max(apart(*losses) for of_rank in found for *losses, _, _ in of_rank))
    for of_rank in found:
        for losses, expected, weights, _ in of_rank:
            assert losses == pytest.approx(expected, rel=0, abs=1e-9) and weights < 1e-9
    for at, (name, *_) in enumerate(cases):
        assert {path for of_rank in found for path in of_rank[at][3]} == set(made(name)[0].state_dict())


def _keeps(rank: int) -> tuple[int, int, float, bool]:
    """Bytes of parameters, gradients and Adam's moments that a rank keeps behind a step, and of the whole model's
    parameters; the largest difference of gradients after two steps without an update to those of one process; whether
    whole parameters are freed."""
    from autopar.distributed.pipeline.units import units

    model, x, y = made("gpt of 1")
    plain = copy.deepcopy(model)
    for _ in range(2):
        loss(plain(x), y).backward()
    before = [weakref.ref(parameter) for parameter in model.parameters()]
    job = job_of(units(model, (x[:4],), {}), 1, 1, 2, 2, "1f1b", "sharded")
    for _ in range(2):
        job.step(x, target=y)
        job(x)
    expected = dict(plain.named_parameters(remove_duplicate=False))
    off = max(float((_whole(p.grad) - expected[path].grad).abs().max()) for path, p in job.named_parameters())
    optimizer = adam(job.parameters())
    optimizer.step()
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    kept = [*job.parameters(), *(p.grad for p in job.parameters()), *moments]
    assert all(parameter in {*job.parameters()} for parameter in model.parameters())
    gc.collect()
    freed = not any(ref() is not None and ref().untyped_storage().nbytes() for ref in before)
    # Gradients of a group lie in one message.
    memory = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (k.to_local() for k in kept)
    }
    return (
        sum(memory.values()),
        sum(parameter.nbytes for parameter in plain.parameters()),
        off,
        freed,
    )


def test_a_rank_keeps_its_share_alone_and_gradients_add_up():
    for kept, whole, off, freed in ranks(2, _keeps):
        assert 4 * whole / 2 <= kept < 1.1 * 4 * whole / 2
        assert off < 1e-12 and freed


def _clipped(rank: int, sharded: bool) -> list[float]:
    """The norm of gradients less that of one process, and the largest differences of clipped gradients."""
    from autopar.distributed.pipeline.units import units

    model, x, y = made("gpt of 1")
    plain = copy.deepcopy(model)
    loss(plain(x), y).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 1e-2)
    # The embedding is the head, too: in two stages without shards.
    shape = (1, 1, 2, 2, "1f1b", "sharded") if sharded else (2, 1, 1, 4, "1f1b")
    job = job_of(units(model, (x[:4],), {}), *shape)
    job.step(x, target=y)
    found = [float(job.clip_grad_norm_(1e-2) - expected)]
    gradients = {path: p.grad for path, p in plain.named_parameters(remove_duplicate=False)}
    return found + [
        float((_whole(p.grad) - gradients[path]).abs().max()) for path, p in job.named_parameters()
    ]


@pytest.mark.parametrize("sharded", [True, False])
def test_the_norm_of_gradients_is_that_of_all_processes(sharded):
    for found in ranks(2, _clipped, sharded):
        assert len(found) > 2 and max(map(abs, found)) < 1e-12


def _saves(rank: int, root: str, shape) -> list[float]:
    """Losses of two steps behind a checkpoint: saved after two by the first run, loaded by others."""
    from autopar.distributed.checkpoint import load_latest, save

    _, x, y = made("gpt of 1")
    job = job_of(chained("gpt of 1", _rows(shape))[0], *shape, "sharded")
    optimizer = adam(job.parameters())
    state = {"model": job, "optimizer": optimizer}
    if load_latest(root, state) is None:
        stepped(job, x, y, 2, optimizer)
        save(root, {**state, "step": 2})
    return stepped(job, x, y, 2, optimizer)


def _goes_on(rank: int, root: str) -> list[float]:
    """Losses of two steps of the plain model in one process, from the checkpoint."""
    from autopar.distributed.checkpoint import load_latest

    model, x, y = made("gpt of 1")
    optimizer = adam(model.parameters())
    assert load_latest(root, {"model": model, "optimizer": optimizer}) == 2
    return trained(model, x, y, 2, optimizer)


def test_a_checkpoint_of_shards_goes_on_in_other_stages_and_in_one_process(tmp_path):
    before = chained, "gpt of 1", 4
    expected = ranks(2, _saves, str(tmp_path), (1, 1, 2, 2, "1f1b"), before=before)[0]
    pipelined = ranks(4, _saves, str(tmp_path), (2, 1, 2, 2, "1f1b"), before=before)[0]
    (alone,) = ranks(1, _goes_on, str(tmp_path))
    assert pipelined == pytest.approx(expected, abs=1e-9) and alone == pytest.approx(expected, abs=1e-9)


def _narrow() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model whose parameters have fewer rows than there are ranks, and of equal shapes."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 4)]
    return nn.Sequential(*layers).double(), torch.randn(16, 4).double(), torch.randint(0, 4, (16,))


def _moments(rank: int, root: str, sharded: bool) -> dict[str, list[float]]:
    """Adam's first moments after two steps, by parameter; of one process that has loaded what two have saved."""
    from autopar.distributed.checkpoint import load_latest, save
    from autopar.distributed.pipeline.units import units

    model, x, y = _narrow()
    if not sharded:
        optimizer = adam(model.parameters())
        assert load_latest(root, {"model": model, "optimizer": optimizer}) == 2
        return {
            path: optimizer.state[p]["exp_avg"].flatten().tolist() for path, p in model.named_parameters()
        }
    plain = copy.deepcopy(model)
    job = job_of(units(model, (x[:8],), {}), 1, 1, 2, 1, "1f1b", "sharded")
    first, second = adam(plain.parameters()), adam(job.parameters())
    trained(plain, x, y, 2, first)
    stepped(job, x, y, 2, second)
    save(root, {"model": job, "optimizer": second, "step": 2})
    return {path: first.state[p]["exp_avg"].flatten().tolist() for path, p in plain.named_parameters()}


def test_ranks_without_a_row_of_a_parameter_save_its_state_as_well(tmp_path):
    expected = ranks(2, _moments, str(tmp_path), True)[0]
    (found,) = ranks(1, _moments, str(tmp_path), False)
    assert {path: pytest.approx(moments) for path, moments in expected.items()} == found


def _planned(rank: int, path: str) -> tuple[str, float, bool]:
    """The plan's report, the difference of the losses of three steps, and whether it is used again once saved."""
    import autopar
    from autopar.ir.hosts import Hosts

    model, x, y = made("mlp")
    expected = trained(copy.deepcopy(model), x, y, 3)
    # Room for three quarters of the weights and the state of an optimizer that keeps much.
    nbytes = 75 * sum(parameter.nbytes for parameter in model.parameters())
    hosts = tuple(
        replace(
            host,
            machine=replace(host.machine, devices=(replace(host.machine.devices[0], memory_bytes=nbytes),)),
        )
        for host in Hosts.declare("2 x cpu over ethernet-10").hosts
    )
    options = {"stages": 1, "replicas": 2, "optimizer_bytes": 98.0, "hosts": Hosts(hosts)}
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, **options)
    losses = stepped(job, x, y, 3)
    if rank == 0:
        job.plan.save(path)
    torch.distributed.barrier()
    again = autopar.distribute(made("mlp")[0], example_inputs=(x,), loss=loss, plan=path)
    assert max(job.plan.memory) <= nbytes
    return job.explain(), max(abs(a - b) for a, b in zip(losses, expected)), again.plan == job.plan


def test_replicas_are_sharded_where_they_do_not_fit_otherwise(tmp_path):
    for report, off, same in ranks(2, _planned, str(tmp_path / "plan.json")):
        assert "2 sharded replicas" in report and "gathers and scatters" in report
        assert off < 1e-9 and same


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"shard_replicas": "yes"}, "shard_replicas='yes' is not known; give True, False or 'auto'"),
        ({"replicas": 1}, "replicas=1; give replicas=2 or more"),
        ({"objective": "throughput"}, "for training; give loss="),
        ({"schedules": ["zero-bubble"]}, "give schedule='1f1b' or 'interleaved', or shard_replicas=False"),
    ],
)
def test_unsupported_sharding_is_refused(options, remedy):
    with pytest.raises(PlanError, match=re.escape(remedy)):
        distribution(even_chain(4), hosts(2), ROWS, **{"shard_replicas": True, **options})
