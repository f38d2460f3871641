"""What a terminal shows of long stages, and what a file does not."""

import io
import threading
import time

import pytest

from autopar.system import text as progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)


def counting():
    """The threads that count seconds, also those of kernels that other tests left building."""
    return {thread for thread in threading.enumerate() if thread.name == "autopar progress"}


def test_seconds_are_counted_and_wiped():
    before = counting()
    out = Terminal()
    with pytest.raises(KeyError), progress.ticking("capture", out):
        time.sleep(0.1)
        raise KeyError
    assert "capture … 0 s" in out.getvalue()
    assert out.getvalue().endswith(" \r")
    assert counting() <= before


def test_nothing_is_written_where_nobody_looks(caplog):
    out = io.StringIO()
    with progress.ticking("capture", out):
        time.sleep(0.05)
    assert out.getvalue() == "" and not caplog.records


def test_a_line_is_logged_now_and_then_where_there_is_no_terminal(caplog, monkeypatch):
    before = counting()
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    out = io.StringIO()
    with pytest.raises(KeyError), progress.ticking("capture", out):
        time.sleep(0.2)
        raise KeyError
    said = len(caplog.records)
    assert 2 <= said <= 10 and "capture: at work for 0 s" in caplog.text
    assert {(record.name, record.levelname) for record in caplog.records} == {("autopar", "WARNING")}
    assert out.getvalue() == ""
    assert counting() <= before


def test_an_interrupt_as_the_count_starts_leaves_no_thread(monkeypatch):
    before, start = counting(), threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), progress.ticking("capture", Terminal()):
        pass
    assert counting() <= before
