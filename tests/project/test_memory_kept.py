"""Freed memory stays in the process once a model is compiled, unless the user has chosen otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autopar.system.process import keep_freed_memory

pytestmark = pytest.mark.skipif(
    keep_freed_memory() == "the C library is not glibc", reason="only glibc has these settings"
)

PAGES = """
import resource
import torch, autopar
from torch import nn

autopar.compile(nn.Linear(8, 8), ["cpu"])

def call():
    # More than glibc keeps by itself, in blocks that each come from its heap.
    held = [torch.ones(1 << 21) for _ in range(12)]
    del held

for _ in range(3):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, 10 * 12 * (1 << 21) * 4 // resource.getpagesize())
"""

LARGE = """
import resource
import torch, autopar
from torch import nn

model = nn.Sequential(nn.Embedding(20_000, 512), nn.Linear(512, 8))
step = autopar.train_step(model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), ["cpu"])
x, y = torch.arange(64), torch.arange(64) % 8
for _ in range(5):
    step(x, y)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step(x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, 10 * 20_000 * 512 * 4 // resource.getpagesize())
"""


@pytest.mark.slow
def test_pages_are_used_again_after_a_compile():
    environment = {
        name: text for name, text in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name
    }
    # At the same time, since most of it is the start of a process.
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for script in (PAGES, LARGE)
    ]
    for process in started:
        shown, _ = process.communicate(timeout=120)
        faults, allocated = map(int, shown.split()[-2:])
        assert process.returncode == 0 and faults * 100 < allocated


def test_the_reason_names_the_setting(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert keep_freed_memory.__wrapped__() == "MALLOC_TRIM_THRESHOLD_ is set"
