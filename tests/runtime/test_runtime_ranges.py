"""Profilers show the steps of a recorded call under autopar's names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import autopar
from autopar.runtime import record as ranges


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


@pytest.fixture
def fast():
    fast = autopar.compile(Net().eval(), ["cpu", "emulated:0", "emulated:1"], policy="round_robin", split=2)
    yield fast
    fast.close()


def names(fast) -> set[str]:
    """What profilers should show of the program."""
    graph = fast.plan.costed.graph
    return {ranges.title(step, graph) for lane in fast.program.lanes for step in lane.steps} - {""}


@torch.no_grad()
def test_torch_profiler_shows_tasks_with_their_modules_and_copies_in_every_thread(fast):
    x = torch.randn(6, 8)
    fast(x)
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as seen, fast.record():
        fast(x)
    shown = {event.key for event in seen.key_averages()}
    assert names(fast) <= shown
    assert any(name.endswith("· fc1") for name in names(fast)) and any(" to " in name for name in names(fast))
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as seen:
        fast(x)
    assert not names(fast) & {event.key for event in seen.key_averages()}, (
        "a call that is not recorded pays nothing"
    )


@torch.no_grad()
def test_ranges_go_to_nvtx_where_cuda_is_and_are_closed(fast, monkeypatch):
    calls: list[str] = []

    class Nvtx:
        @staticmethod
        def range_push(name: str) -> None:
            calls.append(name)

        @staticmethod
        def range_pop() -> None:
            calls.append("")

    x = torch.randn(6, 8)
    fast(x)
    monkeypatch.setattr(torch.cuda, "nvtx", Nvtx)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fast(x)
    assert not calls
    with fast.record():
        fast(x)
    assert {name for name in calls if name} == names(fast)
    assert calls.count("") * 2 == len(calls)
