"""What oneDNN has on some processors alone: recurrent layers in bfloat16 need AVX-512."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def eager_on_this_processor() -> Iterator[None]:
    """Skip the test where eager asks oneDNN for what it lacks here; every other error stays one."""
    try:
        yield
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip(f"eager itself cannot on this processor: {error}")
