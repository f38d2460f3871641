"""What all tests of the zoo run under."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch_state import changed, state


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits depend on the number of threads: eager and every lane have one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def unchanged(one_thread: None) -> Iterator[None]:
    """Calls leave the state of thread and process as it was."""
    before = state()
    yield
    assert not changed(before)
