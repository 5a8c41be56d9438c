"""How far the law of a quantised target is from that of its full self, along a text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from spsbench.benchmark.text_laws import TextTracer
from spsbench.methods.resolve import resolve
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.models import BLOCKS, CHECKPOINT, Models

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
