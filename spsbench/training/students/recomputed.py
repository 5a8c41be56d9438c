"""Activations that are computed again for the gradient, instead of being kept.

Source: Chen et al. 2016 (arXiv 1604.06174), by `torch.utils.checkpoint`: of each layer only what
went into it is kept, so that a deep student needs the memory of one layer, for a second forward
pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spsbench.engines.session.layer_skip import layers_of
from spsbench.training.students.growing import Growing


@contextmanager
def in_layers(model: nn.Module, wanted: bool) -> Iterator[None]:
    """While it lasts, each decoder layer of `model` forgets its activations, if so `wanted`."""
    layers = list(layers_of(model)[2]) if wanted else []
    for layer in layers:
        layer.forward = partial(again, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # that of its class shows again


def again(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What `forward` returns; without chance in it, since students learn without dropout."""
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **named)


def step(
    pass_over: Callable[[Tensor, Growing], Tensor], features: Tensor, cache: Growing, wanted: bool
) -> Tensor:
    """A pass of a head over `features`, whose keys and values go into `cache`.

    The pass is run on a copy of the cache, so that running it again adds nothing to it twice.
    """
    if not wanted:
        return pass_over(features, cache)

    def run(features: Tensor, held: Growing) -> tuple[Tensor, Growing]:
        mine = held.copy()
        return pass_over(features, mine), mine

    made: Tensor
    made, grown = again(run, features, cache.copy())
    cache.take(grown)
    return made
