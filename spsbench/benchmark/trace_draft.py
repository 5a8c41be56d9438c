"""Drafts along finished texts: one pass of each model over a text, and look-ups at each position.

A schedule that reads the draft's distributions is traced by its stops along the text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.benchmark.target_laws import Laws, on_host
from spsbench.loop.drafter_context import Drawn as How
from spsbench.loop.drafter_context import Weights
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import (
    Context,
    Draft,
    Drafter,
    Schedule,
    Scores,
    Step,
    Verdict,
    always,
)
from spsbench.methods.build import LoadedDrafterContext
from spsbench.methods.drafters.ngram import agreement
from spsbench.methods.resolve import plan_of, warp
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.store.trace_records import Along, DraftOf, Drawn, Proposed


def proposed(
    drafter: Drafter,
    prompt: Sequence[int],
    tokens: Sequence[int],
    rows: Tensor,
    warp: Warp,
    most: int,
) -> Proposed:
    """Return the proposals and hits of a deterministic draft.

    Earlier rounds are those of auto-regressive sampling: `rows` [L, V] are their logits.
    """
    counts, hits = [], []
    for t, draft in enumerate(drafts_along(drafter, prompt, tokens, rows, warp, most)):
        tokens_proposed = draft.tokens.tolist()
        counts.append(len(tokens_proposed))
        hits.append(agreement(tokens_proposed, tokens, t))
    return Proposed(proposed=np.array(counts, np.uint8), hits=np.array(hits, np.uint8))


def first_laws(
    drafter: Drafter, prompt: Sequence[int], tokens: Sequence[int], rows: Tensor, warp: Warp
) -> Tensor | None:
    """Return [n, V] distributions of the first slot after each position of a text.

    n may be less than the number of tokens, where the draft's context is full. None: the drafter
    returns no draft at some positions.
    """
    ends = len(tokens) if drafter.limit is None else max(drafter.limit - len(prompt), 0)
    laws = []
    for draft in drafts_along(drafter, prompt, tokens[:ends], rows, warp, 1):
        if draft.probs is None or len(draft.tokens) == 0:
            return None
        laws.append(draft.probs[0])
    return torch.stack(laws) if laws else None


def drafts_along(
    drafter: Drafter, prompt: Sequence[int], tokens: Sequence[int], rows: Tensor, warp: Warp, k: int
) -> Iterator[Draft]:
    """Yield the draft before each of `tokens`, after rounds of auto-regressive sampling."""
    text, last = list(prompt), None
    drafter.begin(prompt, Scores(rows[:0], {}))
    none = torch.empty(0, dtype=torch.int64)
    for t, token in enumerate(tokens):
        yield drafter.draft(Context(list(text), warp, last), k, PhiloxStream(0).round(t), always)
        verdict = Verdict(none, torch.tensor(token), torch.tensor(0))
        last = Step(Draft(none, None), Scores(rows[t : t + 1], {}), verdict)
        text.append(token)


def readers(cells: Sequence[Cell]) -> dict[str, Schedule]:
    """Return the schedules of `cells` whose `go_on` reads the distribution."""
    named = {str(cell.schedule): cell.schedule for cell in cells}
    by_name: dict[str, Schedule] = {name: make("schedules", spec) for name, spec in named.items()}
    return {name: schedule for name, schedule in by_name.items() if reads(schedule)}


def reads(schedule: Schedule) -> bool:
    """Return whether the class of a schedule has a `go_on` of its own."""
    return getattr(type(schedule), "go_on", Schedule.go_on) is not Schedule.go_on


def stopped(schedule: Schedule, sure: Tensor, length: int, most: int) -> NDArray[np.uint8]:
    """Return [L] the slots, of `most`, that a schedule drafts from each position along a text.

    `k` is called as in a first round: adaptation from round to round is left out.
    """
    stops = np.zeros(length, np.uint8)
    for at in range(length):
        k = min(schedule.k(()), most)
        ends = min(k, len(sure) - at)
        taken = 0
        while taken < ends and bool(schedule.go_on(sure[at + taken])):
            taken += 1
        stops[at] = k if taken == ends else taken
    return stops


MAX_LOOKAHEAD = 64  # tokens requested from a deterministic draft
DEAR = 8  # tokens requested from a deterministic draft that runs a model


class DraftTracer:
    """The tracer of one draft, or the reason why a text cannot determine its acceptance.

    Args:
        name: of the draft in the trace.
        cells: differ in verifier and schedule only.
        loaded: their models.
    """

    def __init__(
        self, name: str, cells: Sequence[Cell], loaded: Loaded, identity: Mapping[str, Any]
    ) -> None:
        self.name, self.cell, self.loaded = name, cells[0], loaded
        self.plan, self.warp = plan_of(self.cell.drafter), warp(self.cell)
        self.drafter = self._opened()
        self.sampled = self.drafter.drawn is How.IID
        self.schedules = readers(cells) if has_laws(self.drafter) else {}
        self.most = MAX_LOOKAHEAD if self.plan.weights is Weights.NONE else DEAR
        self.of = DraftOf(
            name=name,
            identity=identity,
            sampled=self.sampled,
            exact=has_laws(self.drafter) if self.sampled else self.drafter.text_alone,
            most=0 if self.sampled else self.most,
        )
        self._silent = self.sampled and not self.drafter.text_alone

    @property
    def unfit(self) -> str | None:
        """Return why the draft cannot be traced; None: the draft can be traced."""
        if self.plan.tree:
            return "its drafts branch"
        if self.drafter.layers:
            return "it draws on hidden states of the target"
        if self._silent:
            return "its laws depend on more than the text"
        return None

    def along(self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]) -> Along | None:
        """Return the draft's trace along a text; None: the draft turned out to be `unfit`."""
        if not self.sampled:
            rows = torch.cat([law.logits for law in laws])
            return proposed(self.drafter, prompt, tokens, rows, self.warp, self.most)
        if not has_laws(self.drafter):
            return self._asked(prompt, tokens, laws)
        self.drafter.begin(prompt, Scores(laws[0].logits[:0], {}))
        return self._drawn(prompt, tokens, laws)

    def _asked(
        self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]
    ) -> Along | None:
        """Return a trace by the first slot's distribution, an estimate for later slots."""
        rows, q = (torch.cat([law[i] for law in laws]) for i in (0, 1))
        draft_laws = first_laws(self.drafter, prompt, tokens, rows, self.warp)
        if draft_laws is None:
            self._silent = True
            return None
        count, size = draft_laws.shape
        at = torch.tensor(tokens[:count], device=draft_laws.device)
        target = Laws(rows[:count, :size], q[:count, :size])
        columns = {
            name: np.pad(on_host(values), (0, len(tokens) - count))
            for name, values in compared(draft_laws, draft_laws, target, at).items()
        }
        return drawn(columns, None if count == len(tokens) else count, {})

    def _opened(self) -> Drafter:
        site = LoadedDrafterContext(self.cell, self.loaded, self.plan)
        drafter: Drafter = make("drafters", self.cell.drafter, site)
        return drafter

    def _drawn(self, prompt: Sequence[int], tokens: Sequence[int], laws: list[Laws]) -> Drawn:
        text, begin = [*prompt, *tokens], len(prompt)
        limit = self.drafter.limit
        columns: dict[str, list[Floats]] = {n: [] for n in COLUMNS}
        kept: list[Tensor] = []
        for piece in laws:
            end = begin + len(piece.q)
            stop = end if limit is None else max(min(end, limit), begin)
            if stop > begin:
                draft_laws = self.drafter.along(text[:stop], begin, self.warp)
                if draft_laws is None:
                    raise RuntimeError(f"drafter {self.name} has laws for some texts only")
                target = self._sized(piece, draft_laws.laws.shape[-1], stop - begin)
                at = torch.tensor(text[begin:stop], device=draft_laws.laws.device)
                for name, values in compared(draft_laws.laws, draft_laws.sure, target, at).items():
                    columns[name].append(on_host(values))
                kept += [draft_laws.sure] if self.schedules else []
            for values_of in columns.values():  # beyond the context nothing is drafted
                values_of.append(np.zeros(end - stop))
            begin = end
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        reach = None if limit is None else max(limit - len(prompt), 0)
        sure = torch.cat(kept) if kept else torch.zeros(0, 0)
        stops = {
            name: stopped(schedule, sure, len(tokens), MAX_LOOKAHEAD)
            for name, schedule in self.schedules.items()
        }
        return drawn(whole, reach, stops)

    def _sized(self, piece: Laws, size: int, count: int) -> Laws:
        """Return the target's distributions over the tokens that both models have."""
        logits, q = piece.logits[:count], piece.q[:count]
        if q.shape[-1] == size:
            return Laws(logits, q)
        return Laws(logits[:, :size], self.warp(logits[:, :size]))


COLUMNS = ("p", "overlap", "entropy", "peak", "agrees")


def drawn(
    columns: Mapping[str, Floats], reach: int | None, stops: Mapping[str, NDArray[np.uint8]]
) -> Drawn:
    """Return a trace of the columns of `compared`, each of the whole text."""
    every: dict[str, Any] = {**columns, "agrees": columns["agrees"] > 0}
    return Drawn(**every, reach=reach, stops=stops)


def compared(p: Tensor, sure: Tensor, target: Laws, tokens: Tensor) -> dict[str, Tensor]:
    """Return the columns of a trace, [n] each, at the positions of `tokens`."""
    return {
        "p": p.gather(1, tokens[:, None])[:, 0],
        "overlap": torch.minimum(p, target.q).sum(-1),
        "entropy": torch.special.entr(sure).sum(-1),
        "peak": sure.amax(-1),
        "agrees": (sure.argmax(-1) == target.logits.argmax(-1)).double(),
    }


def has_laws(drafter: Drafter) -> bool:
    """Return whether a drafter's class gives distributions along a text, for a single pass."""
    return getattr(type(drafter), "along", Drafter.along) is not Drafter.along
