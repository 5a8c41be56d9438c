"""The target's distribution of every token of a finished text, by one pass, and its distance.

The distance compares a quantised target with the full-precision target along a text.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.loop.decode import token_budget
from spsbench.loop.processors import TextProcessors
from spsbench.loop.types import LM, Limits
from spsbench.methods.processors import processors_of
from spsbench.methods.resolve import warp_of
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.settings.models import BLOCKS, CHECKPOINT
from spsbench.settings.records import Key
from spsbench.store.traces import Written

PIECE = 64  # positions scored at once


class Rows(NamedTuple):
    """Logits and probs of the target at some positions of a text, under its processors."""

    logits: Tensor  # [n, V]
    q: Tensor  # [n, V]
    hidden: Mapping[int, Tensor] = MappingProxyType({})  # layer -> [m, D] of all that was fed


class TextTracer:
    """The target's distributions along texts of an ArS cell, and hidden states of `layers`."""

    def __init__(self, cell: Cell, loaded: Loaded, layers: Sequence[int] = ()) -> None:
        self.cell, self.warp = cell, warp_of(cell)
        engine = make("engines", cell.target.engine)
        self.target: LM = engine.session(loaded.target, vocab_size=loaded.vocab_size, layers=layers)
        self._processors = processors_of(cell, loaded)

    def rows(self, prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[Rows]:
        """Yield `Rows` before each of `tokens`, in pieces of `PIECE`; the session begins anew.

        `prompt` is not empty. The first piece has the hidden states of the prompt too.
        """
        text, end = [*prompt, *tokens], len(prompt) + len(tokens)
        by = self._processors
        processed = None if by is None else TextProcessors(by, len(prompt))
        self.target.commit(0)
        prefill = self.target.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)
        before = {layer: states.clone() for layer, states in prefill.hidden.items()}
        for begin in range(len(prompt), end, PIECE):
            fed = torch.tensor(text[begin - 1 : min(begin + PIECE, end) - 1], dtype=torch.int64)
            logits, new, _ = self.target.append(fed, keep=len(fed))
            hidden = {n: torch.cat([before.pop(n, rows[:0]), rows]) for n, rows in new.items()}
            if processed is not None:
                logits = processed.along(logits, text[: begin + len(fed) - 1])
            yield Rows(logits, self.warp(logits), hidden)

    def written(
        self, key: Key, prompt: Sequence[int], tokens: Sequence[int], finish: str, rows: list[Rows]
    ) -> Written:
        """Return a text's line of a trace: q of each token, entropy of each q; `tokens`: not []."""
        q = torch.cat([piece.q for piece in rows])
        at = torch.tensor(tokens, device=q.device)[:, None]
        limits = Limits(self.cell.max_new_tokens)
        return Written(
            key=key,
            prompt_tokens=len(prompt),
            budget=token_budget(len(prompt), limits, self.target.limit),
            finish=finish,
            q=to_numpy(q.gather(1, at)[:, 0]),
            entropy=to_numpy(torch.special.entr(q).sum(-1)),
        )


def to_numpy(values: Tensor) -> Floats:
    """Return [n] values as a numpy array."""
    array: Floats = values.double().cpu().numpy()
    return array


DIGITS = 6  # decimals kept


def distance(
    cell: Cell, prompt: Sequence[int], tokens: Sequence[int], models: Callable[[Cell], Loaded]
) -> float | None:
    """Return the summed total variation, over `tokens`, of a quantised target's distributions.

    The total variation is sum_x |q - q'| / 2, with q' of the full-precision target, which `models`
    loads. Both are under the cell's own warp: for greedy distributions the sum counts differing
    tokens. None for no tokens, where a sum is not finite, and for other targets: random weights
    have no reference, and block-quantised files are the checkpoint itself.
    """
    target = cell.target
    if not tokens or target.random or target.quantised in (None, BLOCKS):
        return None
    full = cell.auto_regressive.but(target=replace(target, weights=CHECKPOINT))
    loaded = models(cell)
    other = replace(models(full), vocab_size=loaded.vocab_size)
    pieces = zip(
        TextTracer(cell, loaded).rows(prompt, tokens),
        TextTracer(full, other).rows(prompt, tokens),
        strict=True,
    )
    total = sum(float((rows.q - others.q).abs().sum()) / 2 for rows, others in pieces)
    return round(total, DIGITS) if math.isfinite(total) else None
