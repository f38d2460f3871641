"""Recurrent layers on padded batches, and single cells: `lstm`, `gru`, `rnn_tanh`, `rnn_relu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import replace_tensors
from .define import lowered, whole

_aten = torch.ops.aten


def states_contiguous(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent layer that takes states of any strides; cuDNN refuses those of a part of a batch."""

    def call(input: Tensor, states: Any, *others: Any) -> Any:
        several = isinstance(states, (tuple, list))
        return layer(input, [s.contiguous() for s in states] if several else states.contiguous(), *others)

    return call


def _like(input: Tensor, hx: Any, *rest: Any) -> tuple[Tensor, ...]:
    """Return empty outputs in time-major memory, as every kernel writes them, and the last states."""
    *_, bidirectional, batch_first = rest
    states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    if input.dim() == 3 and batch_first:
        output = input.new_empty(input.shape[1], input.shape[0], features).transpose(0, 1)
    else:
        output = input.new_empty(*input.shape[:-1], features)
    return (output, *(state.new_empty(state.shape) for state in states))


def products(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    """Return the dtype to which autocast casts products on a device type."""
    return torch.get_autocast_dtype(kind)


def _cast_gru(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    """Return the dtype for a GRU; on a CPU, only products are cast, and the result has the input's dtype."""
    whole = kind == "cpu" and args[0].dtype is torch.float32
    return torch.float32 if whole else torch.get_autocast_dtype(kind)


def layers(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    """Return the dtype to which autocast casts a layer; for cuDNN always float16, whatever it is set to."""
    library = kind == "cuda" and torch.backends.cudnn.is_acceptable(args[0])
    return torch.float16 if library else products(kind, args)


def _cast_gru_layer(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    return _cast_gru(kind, args) if kind == "cpu" else layers(kind, args)


def projected(args: tuple[Any, ...]) -> bool:
    """Return True for the arguments of an LSTM with projections, whose hidden states are shorter than its cells."""
    states = next((item for item in args if isinstance(item, (tuple, list))), ())
    return len(states) == 2 and states[0].shape[-1] != states[1].shape[-1]


def projecting(layer: Callable[..., Any], kind: str, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the results of an LSTM with projections under autocast on a CPU, which lowers only its products:
    cells keep their width. It is computed in float32 and then rounded."""
    states = next(item for item in args if isinstance(item, (tuple, list)))
    goal = products(kind, args)
    with torch.autocast(kind, enabled=False):
        output, hidden, cells = layer(
            *replace_tensors(args, lambda tensor: lowered(tensor, kind, torch.float32))
        )
    wide = torch.promote_types(goal, states[1].dtype)
    return lowered(output, kind, goal), lowered(hidden, kind, goal), lowered(cells, kind, wide)


def _shape(input: Tensor, hx: Any, params: list[Tensor], *rest: Any) -> tuple[int, ...]:
    """Return the size of the saved gates, before and after activation, for each sequence, step and weight matrix."""
    steps, batch = (input.shape[1], input.shape[0]) if rest[-1] else input.shape[:2]
    width = sum(weight.shape[0] for weight in params if weight.dim() == 2)
    return (1, batch, steps * width * input.element_size())


LAYERS: dict[Any, Callable[..., Any]] = {
    layer: whole(
        layer,
        _like,
        call=states_contiguous(layer),
        cast=_cast_gru_layer if layer is _aten.gru.input else layers,
        tape=_shape,
    )
    for layer in (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
}
CELLS: dict[Any, Callable[..., Any]] = {
    **{cell: whole(cell, cast=_cast_gru) for cell in (_aten.lstm_cell.default, _aten.gru_cell.default)},
    **{
        cell: whole(cell, cast=products)
        for cell in (_aten.rnn_tanh_cell.default, _aten.rnn_relu_cell.default)
    },
}


def layered(layer: Callable[..., Any], *args: Any) -> tuple[Tensor, ...]:
    """Run stacked recurrent layers by one call each, with `dropout` in between: masks are drawn once, in
    eager's order."""
    sequence, hx, params, biases, layers, dropout, train, bidirectional, batch_first = args
    states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
    ways = 2 if bidirectional else 1
    width = len(params) // layers
    if batch_first:
        sequence = sequence.transpose(0, 1)
    last: list[list[Tensor]] = [[] for _ in states]
    for index in range(layers):
        states_of_layer = [state.narrow(0, index * ways, ways) for state in states]
        weights = params[index * width : (index + 1) * width]
        first = states_of_layer if isinstance(hx, (tuple, list)) else states_of_layer[0]
        sequence, *new_states = layer(sequence, first, weights, biases, 1, 0.0, train, bidirectional, False)
        for ends, state in zip(last, new_states):
            ends.append(state)
        if index < layers - 1:
            sequence = torch.dropout(sequence, dropout, True)
    output = sequence.transpose(0, 1) if batch_first else sequence
    return (output, *(torch.cat(ends) for ends in last))
