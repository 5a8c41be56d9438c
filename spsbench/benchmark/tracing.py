"""Drafts along finished texts: one pass of each model over a text, and look-ups asked along it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.benchmark.asked_along import first_laws, proposed
from spsbench.benchmark.stops import readers, stopped
from spsbench.benchmark.text_laws import Laws, on_host
from spsbench.loop.drafter_context import Drawn as How
from spsbench.loop.drafter_context import Weights
from spsbench.loop.types import Drafter, Scores
from spsbench.methods.build import LoadedDrafterContext
from spsbench.methods.resolve import plan_of, warp
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.planning.forecast.traces import Along, DraftOf, Drawn, Proposed
from spsbench.plugins import make
from spsbench.settings.cell import Cell

MOST = 64  # tokens that a draft by rule is asked for
DEAR = 8  # and one that runs a model for it
FEW = 2  # and once more, to see that fewer are the first of the same ones


class DraftTracer:
    """One draft's side, or the reason why a text cannot tell what it would be worth.

    Args:
        name: by which the trace calls it.
        cells: that differ in verifier and schedule alone.
        loaded: their models.
    """

    def __init__(
        self, name: str, cells: Sequence[Cell], loaded: Loaded, identity: Mapping[str, Any]
    ) -> None:
        self.name, self.cell, self.loaded = name, cells[0], loaded
        self.plan, self.warp = plan_of(self.cell.method.drafter), warp(self.cell)
        self.drafter = self._opened()
        self.sampled = self.drafter.drawn is How.IID
        self.schedules = readers(cells) if has_laws(self.drafter) else {}
        self.most = MOST if self.plan.weights is Weights.NONE else DEAR
        self.of = DraftOf(
            name=name,
            identity=identity,
            sampled=self.sampled,
            exact=not self.sampled or has_laws(self.drafter),
            most=0 if self.sampled else self.most,
        )
        self._checked = False
        self._silent = False

    @property
    def unfit(self) -> str | None:
        """Why it cannot be traced."""
        if self.plan.tree:
            return "its drafts branch"
        if self.drafter.layers:
            return "it draws on hidden states of the target"
        if self._silent:
            return "its laws depend on more than the text"
        return None

    def along(self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]) -> Along | None:
        """What it would be worth along a text; None: it is `unfit`, as was found out just now."""
        if not self.sampled:
            return self._looked_up(prompt, tokens, laws)
        if not has_laws(self.drafter):
            return self._asked(prompt, tokens, laws)
        self.drafter.begin(prompt, Scores(laws[0].logits[:0], {}))
        return self._drawn(prompt, tokens, laws)

    def _asked(
        self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]
    ) -> Along | None:
        """By the law of the first slot at each position: an estimate of what later ones have."""
        rows, q = (torch.cat([each[i] for each in laws]) for i in (0, 1))
        given = self.drafter, prompt, tokens, rows, self.warp
        found = first_laws(*given, 1)
        if not self._checked and found is not None:
            self._checked = True
            more = first_laws(*given, FEW + 1)
            if more is None or not torch.allclose(more, found, atol=1e-5):
                found = None
        if found is None:
            self._silent = True
            return None
        known, size = found.shape
        at = torch.tensor(tokens[:known], device=found.device)
        target = Laws(rows[:known, :size], q[:known, :size])
        columns = {
            name: np.pad(on_host(values), (0, len(tokens) - known))
            for name, values in compared(found, found, target, at).items()
        }
        agrees = columns.pop("agrees").astype(np.bool_)
        reach = None if known == len(tokens) else known
        return Drawn(**columns, agrees=agrees, reach=reach, stops={})

    def _opened(self) -> Drafter:
        site = LoadedDrafterContext(self.cell, self.loaded, self.plan)
        drafter: Drafter = make("drafters", self.cell.method.drafter, site)
        return drafter

    def _drawn(self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]) -> Drawn:
        text, begin = [*prompt, *tokens], len(prompt)
        limit = self.drafter.limit
        columns: dict[str, list[Floats]] = {n: [] for n in COLUMNS}
        kept: list[Tensor] = []
        for piece in laws:
            end = begin + len(piece.q)
            known = end if limit is None else max(min(end, limit), begin)
            if known > begin:
                found = self.drafter.along(text[:known], begin, self.warp)
                if found is None:
                    raise RuntimeError(f"drafter {self.name} has laws for some texts only")
                target = self._sized(piece, found.laws.shape[-1], known - begin)
                at = torch.tensor(text[begin:known], device=found.laws.device)
                for name, values in compared(found.laws, found.sure, target, at).items():
                    columns[name].append(on_host(values))
                kept += [found.sure] if self.schedules else []
            for values_of in columns.values():  # beyond its context nothing is drafted
                values_of.append(np.zeros(end - known))
            begin = end
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        agrees = whole.pop("agrees").astype(np.bool_)
        reach = None if limit is None else max(limit - len(prompt), 0)
        sure = torch.cat(kept) if kept else torch.zeros(0, 0)
        stops = {
            name: stopped(schedule, sure, len(tokens), MOST)
            for name, schedule in self.schedules.items()
        }
        return Drawn(**whole, agrees=agrees, reach=reach, stops=stops)

    def _sized(self, piece: Laws, size: int, count: int) -> Laws:
        """The target's laws over the tokens that both models know."""
        logits, q = piece.logits[:count], piece.q[:count]
        if q.shape[-1] == size:
            return Laws(logits, q)
        return Laws(logits[:, :size], self.warp(logits[:, :size]))

    def _looked_up(
        self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]
    ) -> Proposed:
        rows = torch.cat([each.logits for each in laws])
        given = self.drafter, prompt, tokens, rows, self.warp
        found, looked = proposed(*given, self.most)
        if not self._checked:
            self._checked = True
            fewer, _ = proposed(*given, FEW)
            same = (fewer.proposed == np.minimum(found.proposed, FEW)).all()
            looked |= not (same and (fewer.hits == np.minimum(found.hits, FEW)).all())
        if looked:
            self.of = replace(self.of, exact=False)
        return found


COLUMNS = ("p", "overlap", "entropy", "peak", "agrees")


def compared(p: Tensor, sure: Tensor, target: Laws, tokens: Tensor) -> dict[str, Tensor]:
    """[n] each: what a draft's laws are worth at the positions of `tokens`."""
    return {
        "p": p.gather(1, tokens[:, None])[:, 0],
        "overlap": torch.minimum(p, target.q).sum(-1),
        "entropy": torch.special.entr(sure).sum(-1),
        "peak": sure.amax(-1),
        "agrees": (sure.argmax(-1) == target.logits.argmax(-1)).double(),
    }


def has_laws(drafter: Drafter) -> bool:
    """Whether its class says what it draws from along a text, so that one pass tells all."""
    return getattr(type(drafter), "along", Drafter.along) is not Drafter.along
