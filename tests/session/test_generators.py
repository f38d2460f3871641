"""What is kept of random generators, on a CPU and on whatever accelerator there is."""

from types import SimpleNamespace

import torch

from autopar.session.compare import generators, restore


def test_the_generator_of_the_cpu_is_put_back():
    states = generators()
    first = torch.randn(3)
    restore(states)
    assert torch.equal(torch.randn(3), first)


def test_those_of_any_accelerator_are_put_back_once_it_is_in_use(monkeypatch):
    """One that is no cuda, with two devices, each of whose states counts its draws."""
    draws, used = {"xpu:0": 1, "xpu:1": 2}, [False]
    module = SimpleNamespace(
        is_initialized=lambda: used[0],
        get_rng_state=lambda device: torch.tensor(draws[device]),
        set_rng_state=lambda state, device: draws.update({device: int(state)}),
    )
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert generators().keys() == {"cpu"}
    used[0] = True
    states = generators()
    draws.update({"xpu:0": 7, "xpu:1": 8})
    restore(states)
    assert draws == {"xpu:0": 1, "xpu:1": 2}


def test_an_accelerator_that_cannot_be_asked_whether_it_is_in_use_is(monkeypatch):
    module = SimpleNamespace(get_rng_state=lambda device: torch.tensor(5))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert generators()["mps:0"] == 5
