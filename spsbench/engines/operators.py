"""The kernels as operators of torch that are C throughout.

An operator in Python takes 7 us longer than the same in C: as long as a small layer itself. Where
this torch does not take operators in C, `in_c` has none, and those in Python do the work.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from spsbench.engines.native import KINDS, library

_NONE = {dtype: torch.empty(0, dtype=dtype) for dtype in KINDS}


@functools.cache
def in_c(name: str) -> Callable[..., Tensor] | None:
    """An operator of `operators.c`; None: there is none here."""
    space = _space()
    made: Callable[..., Tensor] | None
    made = None if space is None else getattr(getattr(torch.ops, space), name)
    return made


def or_none(given: Tensor | None, dtype: torch.dtype) -> Tensor:
    """As those operators take what may be missing."""
    return _NONE[dtype] if given is None else given


@functools.cache
def _space() -> str | None:
    """What the operators of the compiled file are called by: another file may be there as well."""
    kernels = library()
    if isinstance(kernels, str):
        return None
    name = f"spsbench_{Path(kernels._name).stem}"
    enlisted = name in _enlisted or kernels.enlist(name.encode()) == 0
    if enlisted:
        _enlisted.add(name)
    return name if enlisted else None


_enlisted: set[str] = set()
"""A file enlists once in a process."""
