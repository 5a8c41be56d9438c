"""A module's computation as a trace of `torch.jit`, whose inputs are its weights as well."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

traced: Any = partial(torch.jit.trace, check_trace=False)


def places(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Where each parameter and buffer of a module is kept."""
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            yield from ((store, name) for name, tensor in store.items() if tensor is not None)


def tensors(module: nn.Module) -> list[Tensor]:
    """What is kept there."""
    return [store[name] for store, name in places(module)]


@contextmanager
def over(module: nn.Module, given: Sequence[Tensor]) -> Iterator[None]:
    """Exchange the weights of a module for as long as a trace takes."""
    there = list(places(module))
    before = [store[name] for store, name in there]
    try:
        for (store, name), tensor in zip(there, given, strict=True):
            store[name] = tensor
        yield
    finally:
        for (store, name), tensor in zip(there, before, strict=True):
            store[name] = tensor


def replayed(layers: Sequence[nn.Module], x: Tensor) -> Callable[[], object]:
    """What gives `x` to each of `layers`, as a trace does that is replayed: without their Python.

    It is as good as new: torch rewrites a trace in its first two replays, which were here.
    """
    every = nn.ModuleList(layers)

    def run(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        with over(every, given):
            return tuple(layer(x) for layer in every)

    inputs = (x, *tensors(every))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a layer may ask for the number of rows
        trace = traced(run, inputs)
    for _ in range(2):
        trace(*inputs)
    return partial(trace, *inputs)
