from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def spins_nowhere(one_thread: None) -> None:
    """Ranks share few cores."""
