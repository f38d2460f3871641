"""Torch's logs during a capture."""

import logging
import threading

from torch._dynamo import guards

from autopar.capture.torch_private import quiet


def test_threads_that_capture_at_once_leave_torchs_logs_as_they_were():
    logger, timed = logging.getLogger("torch._dynamo"), guards.profile_guard_manager
    before = logger.level
    inside, leave = threading.Event(), threading.Event()

    def captured():
        with quiet:
            inside.set()
            assert leave.wait(10)

    other = threading.Thread(target=captured)
    with quiet:
        other.start()
        assert inside.wait(10)
        assert logger.level > logging.CRITICAL and guards.profile_guard_manager is not timed
    assert logger.level > logging.CRITICAL
    leave.set()
    other.join()
    assert logger.level == before and guards.profile_guard_manager is timed
