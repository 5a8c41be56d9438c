"""A finished text under its target: the law of every token, by one pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.loop.decode import token_budget
from spsbench.loop.types import LM, Limits
from spsbench.methods.resolve import resolve, warp
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.settings.models import BLOCKS, CHECKPOINT, Models
from spsbench.settings.records import Key
from spsbench.store.trace_records import Written

PIECE = 64  # positions that are scored at once


class Laws(NamedTuple):
    """Of the target, at some positions of a text."""

    logits: Tensor  # [n, V]
    q: Tensor  # [n, V]


class TextTracer:
    """The target's side: laws along a text of auto-regressive sampling.

    Args:
        cell: of ArS, resolved.
        loaded: its models.
    """

    def __init__(self, cell: Cell, loaded: Loaded) -> None:
        self.cell, self.warp = cell, warp(cell)
        engine = make("engines", cell.models.target.engine)
        self.target: LM = engine.session(loaded.target, vocab_size=loaded.vocab_size)

    def laws(self, prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[Laws]:
        """Piece after piece of the text."""
        text, end = [*prompt, *tokens], len(prompt) + len(tokens)
        self.target.commit(0)
        self.target.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)
        for begin in range(len(prompt), end, PIECE):
            fed = torch.tensor(text[begin - 1 : min(begin + PIECE, end) - 1], dtype=torch.int64)
            logits = self.target.append(fed, keep=len(fed)).logits
            yield Laws(logits, self.warp(logits))

    def written(
        self, key: Key, prompt: Sequence[int], tokens: Sequence[int], finish: str, laws: list[Laws]
    ) -> Written:
        """The text as a trace has it."""
        q = torch.cat([each.q for each in laws])
        at = torch.tensor(tokens, device=q.device)[:, None]
        limits = Limits(self.cell.sampling.max_new_tokens)
        return Written(
            key=key,
            prompt_tokens=len(prompt),
            budget=token_budget(len(prompt), limits, self.target.limit),
            finish=finish,
            q=on_host(q.gather(1, at)[:, 0]),
            entropy=on_host(torch.special.entr(q).sum(-1)),
        )


def on_host(values: Tensor) -> Floats:
    """[n] as numpy has it."""
    found: Floats = values.double().cpu().numpy()
    return found


# How far the law of a quantised target is from that of its full self, along a text.

DIGITS = 6  # that are kept


def full_self(cell: Cell) -> Cell | None:
    """Auto-regressive sampling from the target as it was trained; None where `cell` has no other.

    Random weights have no meaning to keep, and blocks stand for the checkpoint as it is.
    """
    target = cell.models.target
    if target.quantised in (None, BLOCKS) or target.random:
        return None
    plain = replace(cell.auto_regressive, models=Models(replace(target, weights=CHECKPOINT)))
    return resolve(replace(plain, stored=None))


def distance(
    cell: Cell,
    prompt: Sequence[int],
    tokens: Sequence[int],
    models: Callable[[Cell], Loaded],
) -> float | None:
    """Sum over `tokens` of the total variation, sum_x |q - q'| / 2, of the laws that drew them.

    Both are under the cell's own warp: of greedy laws it counts the tokens where they part. None
    for a target that is not quantised, and where a law is not finite.
    """
    full = full_self(cell)
    if full is None or not tokens:
        return None
    own = models(cell)
    other = replace(models(full), vocab_size=own.vocab_size)
    pieces = zip(
        TextTracer(cell, own).laws(prompt, tokens),
        TextTracer(full, other).laws(prompt, tokens),
        strict=True,
    )
    found = sum(float((mine.q - its.q).abs().sum()) / 2 for mine, its in pieces)
    return round(found, DIGITS) if math.isfinite(found) else None
