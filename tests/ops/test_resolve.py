"""Operators that autopar calls in its own way."""

from __future__ import annotations

import pytest
import torch

from autopar.ops.resolve import target


@pytest.mark.parametrize("name", ["aten.view_as_real.default", "aten.view.dtype"])
def test_elements_that_a_copy_has_conjugated_are_read(name: str) -> None:
    """A trace conjugates twice before it reads the elements; a copy in between has conjugated already."""
    given = torch.randn(3, 4, dtype=torch.complex64)
    others = (torch.float32,) if name.endswith("dtype") else ()
    call = target(name)
    right = call(given, *others)
    once = given.conj().clone()
    assert not once.is_conj()
    assert torch.equal(call(once.conj(), *others), right)
    assert call(given, *others).data_ptr() == given.data_ptr()
