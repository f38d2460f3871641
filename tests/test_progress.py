"""What a terminal shows of long stages, and what a file does not."""

import io
import threading
import time

import pytest

from autopar import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)


def test_seconds_are_counted_and_wiped():
    out = Terminal()
    with pytest.raises(KeyError), progress.ticking("capture", out):
        time.sleep(0.1)
        raise KeyError
    assert "capture … 0 s" in out.getvalue()
    assert out.getvalue().endswith(" \r")
    assert not [thread for thread in threading.enumerate() if thread.name == "autopar progress"]


def test_a_bar_follows_the_items_and_is_wiped():
    out = Terminal()
    for _ in progress.bar(range(4), "measuring", out):
        time.sleep(0.02)
    assert "measuring [" in out.getvalue() and "3/4" in out.getvalue()
    assert out.getvalue().endswith(" \r")


def test_nothing_is_written_where_nobody_looks():
    out = io.StringIO()
    with progress.ticking("capture", out):
        time.sleep(0.05)
    assert list(progress.bar([1, 2], "measuring", out)) == [1, 2]
    assert out.getvalue() == ""
