"""How a layer is called: what is alike from one pass to the next, and the tensors that are not."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from transformers import Cache

from spsbench.engines.session.cache import PreallocatedCache


def called(kind: int, args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, list[Tensor]]:
    """What a call of a layer of `kind` has in common with others, and its tensors.

    The hidden states [1, m, D] come first; m is in common.
    """
    tensors: list[Tensor] = []
    form = (*(form_of(a, tensors) for a in args), *named)
    form += tuple(form_of(a, tensors) for a in named.values())
    return (kind, tensors[0].shape[1], form), tensors


def form_of(value: Any, tensors: list[Tensor]) -> Any:
    """The kind of an argument, for the key of its trace; tensors are collected."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, PreallocatedCache):
        return Cache
    if isinstance(value, tuple):
        return tuple([form_of(item, tensors) for item in value])
    return value if value is None or isinstance(value, bool | int | str) else id(value)


def replaced(value: Any, tensors: Iterator[Tensor], cache: Cache) -> Any:
    """An argument with its tensors and its cache exchanged for those of a trace."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, PreallocatedCache):
        return cache
    if isinstance(value, tuple):
        return tuple(replaced(item, tensors, cache) for item in value)
    return value


def cache_in(args: Sequence[Any], kwargs: dict[str, Any]) -> PreallocatedCache | None:
    """Whatever a model calls the argument: past_key_values, layer_past."""
    given = (*args, *kwargs.values())
    return next((value for value in given if isinstance(value, PreallocatedCache)), None)
