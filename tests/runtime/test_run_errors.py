"""Errors of a run are of the class that eager raises, too."""

import pickle

import pytest
import torch

from autopar.errors import RunError


class Refused(ValueError):
    def __init__(self, code, more):
        super().__init__(code, more)
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        IndexError("no"),
        KeyError("no"),
        OSError(5, "no"),
        Refused(7, 8),
        RuntimeError("no"),
        SystemExit(1),
        torch.OutOfMemoryError("no"),
    ],
)
def test_an_error_of_a_run_is_of_the_class_of_its_cause_too(error):
    found = RunError.like(error, "task 'a' failed")
    assert isinstance(found, RunError) and str(found) == "task 'a' failed"
    assert isinstance(found, type(error)) or isinstance(error, (OSError, SystemExit))
    assert getattr(found, "code", None) == getattr(error, "code", None) or isinstance(error, SystemExit)
    assert isinstance(RunError.like(found, "task 'b' failed"), type(error)) or not isinstance(
        found, type(error)
    )
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is RunError and str(again) == str(found)
