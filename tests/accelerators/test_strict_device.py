"""Rules of the strict accelerator, each broken and kept."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import rig
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(rig.KIND != "strict", reason="it is about the stand-in: --accelerator strict"),
]

DEVICES = ["strict:0", "strict:1"]


@pytest.fixture(autouse=True)
def no_delays():
    """Who is late is said by each test."""
    torch.strict.set_delay(0, 0.0)


@pytest.fixture
def streams():
    """Two streams of the first device, neither of them the default one, and no memory that other tests have freed."""
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    return torch.Stream(device="strict:0"), torch.Stream(device="strict:0")


def test_the_accelerator_of_this_process():
    assert torch.accelerator.current_accelerator() == torch.device("strict")
    assert torch.accelerator.device_count() == len(DEVICES)
    assert torch.get_device_module("strict") is torch.strict


@pytest.mark.parametrize("device", DEVICES)
def test_the_host_goes_on_while_the_device_computes(device):
    x = torch.ones(4, device=device)
    stream = torch.accelerator.current_stream(device)
    with torch.strict.held(stream):
        y = x + 1
        done = stream.record_event()
        assert not done.query() and not stream.query()
    done.synchronize()
    assert done.query() and y.sum().item() == 8


@pytest.mark.parametrize("access", ["ctypes.string_at(p, 1)", "ctypes.memset(p, 0, 1)"])
def test_a_host_that_touches_device_memory_dies(access):
    code = f"""
import ctypes, torch, strict
strict.load()
x = torch.ones(4, device="strict:0")
torch.accelerator.synchronize()
p = x.data_ptr()
print("alive", flush=True)
{access}
print("unharmed")
"""
    tests = str(Path(__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n" + code],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.stdout.split() == ["alive"], ran.stderr
    assert ran.returncode == -11


def test_memory_is_poisoned_when_new_and_when_freed():
    with torch.Stream(device="strict:0"):
        x = torch.empty(5000, device="strict:0")
        assert x.isnan().all().item()
        assert (torch.empty(3000, dtype=torch.int64, device="strict:0") == -1).all().item()
        x.fill_(1)
        before = x.data_ptr()
        del x
        again = torch.empty(5000, device="strict:0")
        assert again.data_ptr() == before and again.isnan().all().item()
        torch.strict.set_poison(False)
        again.fill_(2)
        del again
        assert (torch.empty(5000, device="strict:0") == 2).all().item()


def test_freed_memory_is_for_the_stream_it_was_allocated_on(streams):
    a, b = streams
    with a:
        x = torch.empty(7000, device="strict:0")
    address = x.data_ptr()
    del x
    with b:
        other = torch.empty(7000, device="strict:0")
    with a:
        own = torch.empty(7000, device="strict:0")
    assert other.data_ptr() != address and own.data_ptr() == address


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("poison", [False, True])
def test_use_after_free_on_another_stream_is_wrong(streams, told, poison):
    """Unless the allocator was told by `record_stream`; without poison what is written there next is read."""
    torch.strict.set_poison(poison)
    a, b = streams
    with a:
        x = torch.ones(1000, device="strict:0")
    b.wait_stream(a)
    with torch.strict.held(b), b:
        y = x * 1
        if told:
            x.record_stream(b)
        del x
        with a:
            other = torch.full((1000,), 7.0, device="strict:0")
        a.synchronize()
    b.synchronize()
    assert (y == (1 if told else 7)).all().item()
    del other


def test_what_is_freed_at_once_is_nan_to_who_is_late(streams):
    a, b = streams
    with a:
        x = torch.ones(1000, device="strict:0")
    b.wait_stream(a)
    with torch.strict.held(b):
        with b:
            y = x * 1
        del x
        a.synchronize()
    b.synchronize()
    assert y.isnan().all().item()


@pytest.mark.parametrize("waits", [False, True])
def test_a_missing_wait_is_wrong(streams, waits):
    a, b = streams
    with a:
        x = torch.zeros(1000, device="strict:0")
    a.synchronize()
    with torch.strict.held(a):
        with a:
            x.add_(1)
        if waits:
            b.wait_event(a.record_event())
        with b:
            y = x * 1
        if not waits:
            b.synchronize()
    b.synchronize()
    assert (y == (1 if waits else 0)).all().item()


@pytest.mark.parametrize("waits", [False, True])
def test_a_missing_wait_between_devices_is_wrong(waits):
    a, b = torch.Stream(device="strict:0"), torch.Stream(device="strict:1")
    with a:
        x = torch.zeros(1000, device="strict:0")
    a.synchronize()
    with torch.strict.held(a):
        with a:
            x.add_(1)
        if waits:
            b.wait_event(a.record_event())
        with b:
            y = x.to("strict:1")
        if not waits:
            b.synchronize()
    b.synchronize()
    assert (y.cpu() == (1 if waits else 0)).all()


def test_events_are_versions(streams):
    a, b = streams
    event = torch.Event(device="strict:0")
    b.wait_event(event)  # never recorded: nothing to wait for
    b.synchronize()
    a.record_event(event)
    b.wait_event(event)
    with torch.strict.held(a):
        a.record_event(event)
        b.synchronize()  # waits for what was recorded when it was told to wait
        assert not event.query()
    event.synchronize()
    assert event.query()


def test_pinned_memory_is_read_when_the_stream_gets_there():
    x, there = torch.ones(1000).pin_memory(), torch.zeros(1000, device="strict:0")
    assert x.is_pinned() and not torch.ones(1000).is_pinned()
    with torch.strict.held(torch.accelerator.current_stream(0)):
        there.copy_(x, non_blocking=True)
        x.fill_(3)
    assert (there == 3).all().item()
    pageable = torch.ones(1000)
    with torch.strict.held(torch.accelerator.current_stream(0)):
        there.copy_(pageable, non_blocking=True)
        pageable.fill_(3)
    assert (there == 1).all().item()


def test_pinned_memory_is_there_when_the_stream_got_there():
    x, here = torch.full((1000,), 5.0, device="strict:0"), torch.zeros(1000).pin_memory()
    with torch.strict.held(torch.accelerator.current_stream(0)):
        here.copy_(x, non_blocking=True)
        assert (here == 0).all()
    torch.accelerator.synchronize(0)
    assert (here == 5).all()


def test_pinned_memory_is_reused_when_streams_are_done():
    x, there = torch.ones(1 << 18).pin_memory(), torch.zeros(1 << 18, device="strict:0")
    address = x.data_ptr()
    with torch.strict.held(torch.accelerator.current_stream(0)):
        there.copy_(x, non_blocking=True)
        del x
        other = torch.empty(1 << 18, pin_memory=True)
        assert other.data_ptr() != address
    torch.accelerator.synchronize(0)
    again = torch.empty(1 << 18, pin_memory=True)
    assert again.data_ptr() == address and bool(again.isnan().all())
    assert (there == 1).all().item()


def test_only_some_copies_make_the_host_wait():
    x, pinned = torch.ones(100, device="strict:0"), torch.empty(100, pin_memory=True)

    def waits(call) -> int:
        before = torch.strict.host_waits()
        call()
        return torch.strict.host_waits() - before

    assert waits(lambda: pinned.copy_(x, non_blocking=True)) == 0
    assert waits(lambda: x.copy_(pinned, non_blocking=True)) == 0
    assert waits(lambda: x.copy_(torch.ones(100), non_blocking=True)) == 0
    assert waits(lambda: x.to("strict:1")) == 0
    assert waits(lambda: pinned.copy_(x)) == 1
    assert waits(lambda: torch.empty(100).copy_(x, non_blocking=True)) == 1
    assert waits(lambda: x.sum().item()) == 1
    torch.strict.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing operation"):
        x.sum().item()
    pinned.copy_(x, non_blocking=True)


def test_an_error_surfaces_at_a_synchronisation():
    rows, wrong = torch.randn(4, 3, device="strict:0"), torch.tensor([9], device="strict:0")
    found = torch.nn.functional.embedding(wrong, rows)
    assert found.shape == (1, 3)
    torch.accelerator.synchronize(1)
    with pytest.raises(
        RuntimeError, match="strict:0: asynchronous error: aten::index_select: index out of range"
    ):
        torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(0)


def test_mistakes_of_the_caller_are_errors_at_once():
    x = torch.ones(2, 3, device="strict:0")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        x @ x
    with pytest.raises(RuntimeError, match="size"):
        x.add_(torch.ones(4, device="strict:0"))
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2, 3, device="strict:1")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(1.0).add_(x[0, 0])
    assert ((x + torch.tensor(2.0)) == 3).all().item()
    with pytest.raises(RuntimeError, match="there is no strict:7"):
        torch.ones(1, device="strict:7")


def test_out_of_memory_after_the_caches_are_given_back():
    torch.strict.set_poison(False)  # which would touch all of it
    free, total = torch.accelerator.get_memory_info(0)
    assert 0 < free <= total
    part = total * 6 // 10
    for _ in range(3):  # sizes differ: no block serves the next
        held = torch.empty(part, dtype=torch.uint8, device="strict:0")
        part -= total // 10
        del held
    part = total * 6 // 10
    held = torch.empty(part, dtype=torch.uint8, device="strict:0")
    with pytest.raises(torch.OutOfMemoryError, match="strict out of memory"):
        torch.empty(part, dtype=torch.uint8, device="strict:0")
    other = torch.empty(part, dtype=torch.uint8, device="strict:1")
    del held, other
    torch.accelerator.empty_cache()
    assert torch.accelerator.get_memory_info(0)[0] >= free


def test_allocated_memory_is_counted():
    before = torch.accelerator.memory_allocated(0)
    torch.accelerator.reset_peak_memory_stats(0)
    x = torch.empty(1 << 20, device="strict:0")
    assert torch.accelerator.memory_allocated(0) == before + x.nbytes
    del x
    assert torch.accelerator.memory_allocated(0) == before
    assert torch.accelerator.max_memory_allocated(0) >= before + (4 << 20)


def test_what_depends_on_the_numbers_makes_the_host_wait():
    x = torch.tensor([0, 3, 0, 4], device="strict:0")
    before = torch.strict.told().get("aten::nonzero", 0)
    assert x.nonzero().flatten().tolist() == [1, 3]
    assert torch.strict.told()["aten::nonzero"] == before + 1


def test_random_numbers_are_settled_when_they_are_asked_for(streams):
    state = torch.strict.get_rng_state("strict:1")
    a, b = torch.randn(5, device="strict:1"), torch.randn(5, device="strict:1")
    torch.strict.set_rng_state(state, "strict:1")
    again = torch.randn(5, device="strict:1"), torch.randn(5, device="strict:1")
    assert torch.equal(a, again[0]) and torch.equal(b, again[1]) and not torch.equal(a, b)
    torch.manual_seed(3)
    with torch.strict.held(streams[0]):
        with streams[0]:
            late = torch.randn(5, device="strict:0")
        early = torch.randn(5, device="strict:0")
        torch.accelerator.current_stream(0).synchronize()
    torch.manual_seed(3)
    both = torch.randn(5, device="strict:0"), torch.randn(5, device="strict:0")
    rig.synchronize()
    assert torch.equal(late, both[0]) and torch.equal(early, both[1])


def test_one_seed_gives_the_same_delays():
    def delays(seed: int) -> int:
        torch.strict.set_seed(seed)
        before = torch.strict.delayed_us()
        for _ in range(30):
            torch.ones(1, device="strict:0")
        return torch.strict.delayed_us() - before

    torch.strict.set_delay(500, 0.5)
    first = delays(1)
    assert first == delays(1) != delays(2)
    assert 0 < first < 30 * 500
