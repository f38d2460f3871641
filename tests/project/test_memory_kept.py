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


@pytest.mark.slow
def test_pages_are_used_again_after_a_compile():
    environment = {
        name: text for name, text in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name
    }
    command = [sys.executable, "-c", PAGES]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    given, allocated = map(int, found.stdout.split()[-2:])
    assert given * 100 < allocated


def test_the_reason_names_the_setting(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert keep_freed_memory.__wrapped__() == "MALLOC_TRIM_THRESHOLD_ is set"
