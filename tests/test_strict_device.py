"""The strict accelerator itself."""

import pytest
import torch

pytestmark = pytest.mark.gpu


def test_there_are_two():
    assert torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator().type == "strict"
