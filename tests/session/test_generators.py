"""What is kept of random generators, on a CPU and on whatever accelerator there is."""

from types import SimpleNamespace

import pytest
import torch

from autopar.session.compare import generators, restore


@pytest.mark.parametrize("kind", ["", "xpu", "mps"])
def test_generators_are_put_back_once_they_are_in_use(monkeypatch, kind):
    """Those of the CPU; of two devices of a kind, each of whose states counts its draws; of the one device of a module
    that takes no device and cannot be asked whether it is in use."""
    draws, used = {f"{kind}:{index}": index for index in range({"xpu": 2, "mps": 1}.get(kind, 0))}, [False]
    if kind == "xpu":
        module = SimpleNamespace(
            is_initialized=lambda: used[0],
            get_rng_state=lambda device: torch.tensor(draws[device]),
            set_rng_state=lambda state, device: draws.update({device: int(state)}),
        )
    else:
        module = SimpleNamespace(
            get_rng_state=lambda: torch.tensor(draws["mps:0"]),
            set_rng_state=lambda state: draws.update({"mps:0": int(state)}),
        )
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: bool(kind))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(draws))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert generators().keys() == {"cpu"} | ({*draws} if kind == "mps" else set())
    used[0] = True
    states, before, first = generators(), dict(draws), torch.randn(3)
    draws.update(dict.fromkeys(draws, 7))
    restore(states)
    assert torch.equal(torch.randn(3), first) and draws == before
