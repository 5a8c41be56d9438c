"""The kernels as operators of torch that are C throughout.

An operator in Python takes 7 us longer than the same in C: as long as a small layer itself. Where
this torch does not take operators in C, `in_c` has none, and `run` takes those in Python.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.extensions.cpu.kernels.native import library

NONE = torch.empty(0)
"""A missing tensor, for C."""


@functools.cache
def in_c(name: str) -> Callable[..., Tensor] | None:
    """Return an operator of `operators.c`, or None if it is not available."""
    space = _space()
    operator: Callable[..., Tensor] | None
    operator = None if space is None else getattr(getattr(torch.ops, space), name)
    return operator


def run(name: str, *arguments: Any) -> Tensor:
    """Run the operator of this name, in C or else in Python; None is a missing tensor."""
    result: Tensor
    if (operator := in_c(name)) is None:
        result = getattr(torch.ops.spsbench, name)(*arguments)
        return result
    return operator(*(NONE if argument is None else argument for argument in arguments))


def is_ours(space: str) -> bool:
    """Return whether this namespace holds the operators of the kernels."""
    return space in ("spsbench", _space())


@functools.cache
def _space() -> str | None:
    """Return the namespace of the compiled operators: several files may be loaded."""
    kernels = library()
    if isinstance(kernels, str):
        return None
    name = f"spsbench_{Path(kernels._name).stem}"
    enlisted = name in _enlisted or kernels.enlist(name.encode()) == 0
    if enlisted:
        _enlisted.add(name)
    return name if enlisted else None


_enlisted: set[str] = set()
"""Libraries register their operators once in a process."""
