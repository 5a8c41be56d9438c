"""Keys and values that grow by a pass, and what its rows may see, as while a draft grows.

Source: the training-time test of EAGLE-3 (arXiv 2503.01840, section 3.2) and the harmonised
context of HASS (arXiv 2408.15766, section 3.2): pass d is fed what pass d - 1 made.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spsbench.engines.session.layer_skip import layers_of
from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.heads.network import HeadNetwork
from spsbench.training.losses import feature
from spsbench.training.students.head_parts import head_of
from spsbench.training.students.student import (
    Batch,
    Prediction,
    Student,
    TeacherOutput,
    wanted_rows,
)


class UnrollCache:
    """A `loop.site.Cache` that keeps gradients."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, m, width]; everything of the layer."""
        if layer_idx in self._held:
            keys, values = self._held[layer_idx]
            key_states = torch.cat([keys, key_states], 2)
            value_states = torch.cat([values, value_states], 2)
        self._held[layer_idx] = key_states, value_states
        return key_states, value_states

    def copy(self) -> "UnrollCache":
        """Another one over the same keys and values."""
        made = UnrollCache()
        made.take(self)
        return made

    def take(self, other: "UnrollCache") -> None:
        """Hold what another one does."""
        self._held = dict(other._held)

    def keep(self, length: int, rows: object = ()) -> None:
        """Nothing is rolled back while a text is read."""


def seen(texts: int, rows: int, depth: int, device: torch.device) -> Tensor:
    """[m, (depth + 1) * m] what rows of pass `depth` see, where m = texts * rows.

    Row t of a text was fed a draft of `depth` tokens after row t - depth. So it sees rows of pass 0
    up to that one, and of each pass i after it the one row t - depth + i.
    """
    place = torch.arange(rows, device=device).repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(rows)
    same = text[:, None] == text
    apart = place[:, None] - place  # [m, m] how far behind a key is
    blocks = [same & (apart >= depth)]
    blocks += [same & (apart == depth - i) for i in range(1, depth + 1)]
    return torch.cat(blocks, 1)


# Activations that are computed again for the gradient, instead of being kept.


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
    pass_over: Callable[[Tensor, UnrollCache], Tensor],
    features: Tensor,
    cache: UnrollCache,
    wanted: bool,
) -> Tensor:
    """A pass of a head over `features`, whose keys and values go into `cache`.

    The pass is run on a copy of the cache, so that running it again adds nothing to it twice.
    """
    if not wanted:
        return pass_over(features, cache)

    def run(features: Tensor, held: UnrollCache) -> tuple[Tensor, UnrollCache]:
        mine = held.copy()
        return pass_over(features, mine), mine

    made: Tensor
    made, grown = again(run, features, cache.copy())
    cache.take(grown)
    return made


# Heads of EAGLE's kind, fed their own features as while they draft.


class Unrolled(Student):
    """`HeadNetwork` over texts: row t of pass d tells token t + 2, after d tokens of a draft.

    Args:
        network: with weights to begin with.
        target: its embeddings and head, which stay as they are.
        depth: passes.
    """

    network: HeadNetwork
    recomputes = True
    regresses = 0.0  # weight of the feature regression

    def __init__(self, network: HeadNetwork, target: TargetParts, depth: int) -> None:
        self.network, self.target, self.depth, self.most = network, target, depth, 16
        self.ids, self._their_head = network.ids, head_of(target)

    @property
    def passes(self) -> int:
        """One a depth."""
        return self.depth

    def reads(self, layers: int) -> Sequence[int]:
        """Its features, and the last one."""
        return sorted({*self.network.layers, layers})

    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        """All passes over the same rows, each fed the features that the one before it made."""
        texts, length = batch.ids.shape
        rows, dtype = length - 1, next(self.network.parameters()).dtype
        hidden = [
            lesson.hidden[layer][:, :-1].flatten(0, 1).to(dtype) for layer in self.network.layers
        ]
        features = self.network.fuse(hidden)
        embedded = self.network.embed(batch.ids[:, 1:].flatten(), self.target.embed).to(dtype)
        device = features.device
        place = torch.arange(rows, device=device)
        cache, told = UnrollCache(), lesson.hidden[-1]
        for d in range(depth):
            sees = seen(texts, rows, d, device)

            def pass_over(features: Tensor, cache: UnrollCache, sees: Tensor = sees) -> Tensor:
                return self.network.step(features, embedded, place.repeat(texts), cache, sees)

            made = step(pass_over, features, cache, self.recompute)
            # row t tells the token after row t + 1; a draft of d tokens has d rows before it
            ahead = (torch.arange(texts, device=device)[:, None] * length + place[d:] + 1).flatten()
            at, kept = wanted_rows(batch, ahead)
            mine = made.view(texts, rows, -1)[:, d:].flatten(0, 1)[at]
            extra = None
            if self.regresses:
                true = told.flatten(0, 1)[kept].to(dtype)
                extra = self.regresses * feature(mine, true)
            yield Prediction(kept, self.network.scores(mine, self._their_head), extra)
            features = moved(made, texts)


def moved(made: Tensor, texts: int) -> Tensor:
    """[m, H] what came out of each row -> what the row after it is fed; zeros before the first."""
    each = made.view(texts, -1, made.shape[-1])
    return nn.functional.pad(each[:, :-1], (0, 0, 1, 0)).flatten(0, 1)
