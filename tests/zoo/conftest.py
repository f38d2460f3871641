"""What all tests of the zoo run under."""

import warnings
from collections.abc import Iterator

import pytest
from torch_state import changed, state


@pytest.fixture(autouse=True)
def unchanged(one_thread: None) -> Iterator[None]:
    """Calls leave the state of thread and process as it was; eager and every lane have one thread, on which bits
    depend."""
    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert not changed(before)
