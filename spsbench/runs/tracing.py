"""Drafts along finished texts: one pass of each model over a text, and look-ups asked along it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.forecast.chances import Floats
from spsbench.forecast.traces import Along, DraftOf, Drawn, Proposed, Written
from spsbench.loop.decode import token_budget
from spsbench.loop.types import LM, Drafter, Limits, Scores
from spsbench.methods.resolve import plan_of, warp
from spsbench.methods.site import LoadedSite
from spsbench.models.shelf import Loaded
from spsbench.plugins import make
from spsbench.runs.asked_along import proposed
from spsbench.runs.stops import readers, stopped
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key

MOST = 16  # tokens that a draft by rule is asked for
FEW = 2  # and once more, to see that fewer are the first of the same ones
PIECE = 64  # positions that are scored at once: their laws are in memory together


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
        self.sampled = has_laws(self.drafter)
        self.schedules = readers(cells) if self.sampled else {}
        self.of = DraftOf(
            name=name, identity=identity, sampled=self.sampled, most=0 if self.sampled else MOST
        )
        self._checked = False

    @property
    def unfit(self) -> str | None:
        """Why it cannot be traced."""
        if self.plan.tree:
            return "its drafts branch"
        if self.drafter.layers:
            return "it draws on hidden states of the target"
        if not self.sampled and self.plan.drawn.value != "point":
            return "its laws depend on more than the text"
        return None

    def along(self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]) -> Along:
        """What it would be worth along a text."""
        if not self.sampled:
            return self._looked_up(prompt, tokens, laws)
        self.drafter.begin(prompt, Scores(laws[0].logits[:0], {}))
        return self._drawn(prompt, tokens, laws)

    def _opened(self) -> Drafter:
        site = LoadedSite(self.cell, self.loaded, self.plan)
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
        found, looked = proposed(*given, MOST)
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
    """Whether its class says what it draws from along a text."""
    return type(drafter).along is not Drafter.along


def on_host(values: Tensor) -> Floats:
    """[n] as numpy has it."""
    found: Floats = values.double().cpu().numpy()
    return found
