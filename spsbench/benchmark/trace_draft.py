"""Drafts along finished texts: one pass of each model over a text, and look-ups at each position.

A schedule that reads the draft's distributions is traced by its stops along the text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.benchmark.target_probs import Rows, to_numpy
from spsbench.loop.drafter_context import Drawn, Weights
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.processors import TextProcessors
from spsbench.loop.sampling import ProcessedWarp
from spsbench.loop.types import Context, Draft, Drafter, Schedule, Scores, Step, Verdict, always
from spsbench.methods.build import LoadedDrafterContext
from spsbench.methods.drafters.hybrid import looks_up
from spsbench.methods.drafters.model import ChainDrafter
from spsbench.methods.drafters.ngram import count_agreeing, look_ups
from spsbench.methods.processors import processors_of
from spsbench.methods.resolve import plan_of, warp_of
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.settings.method import Drafting
from spsbench.store.traces import Along, DraftOf, Proposed, SampledDraft

MAX_LOOKAHEAD = 64  # tokens requested from a deterministic draft
REQUESTED = (*range(1, 17), 20, 24, 32, 48, MAX_LOOKAHEAD)  # K of look-ups
MAX_MODEL_LOOKAHEAD = 8  # the same where it runs a model
COLUMNS = ("p", "overlap", "entropy", "peak", "agrees")


class DraftTracer:
    """The tracer of one draft, or the reason why a text cannot determine its acceptance.

    `cells` differ in verifier and schedule only; `name` and `identity` are the trace's of it.
    """

    def __init__(
        self, name: Drafting, cells: Sequence[Cell], loaded: Loaded, identity: Mapping[str, Any]
    ) -> None:
        cell = cells[0]
        self.name, self.plan, self.warp = name, plan_of(cell.drafter), warp_of(cell)
        self._processors = processors_of(cell, loaded)
        self.drafter: Drafter = make("drafters", cell.drafter, LoadedDrafterContext(cell, loaded))
        self._has_probs = overrides(self.drafter, Drafter, "along")
        self.schedules = readers(cells) if self._has_probs else {}
        is_sampled = self.drafter.drawn is Drawn.IID
        self._is_head = isinstance(self.drafter, ChainDrafter) and bool(self.drafter.layers)
        most = MAX_LOOKAHEAD if self.plan.weights is Weights.NONE else MAX_MODEL_LOOKAHEAD
        self.of = DraftOf(
            name=name,
            identity=identity,
            sampled=is_sampled,
            exact=is_sampled or self.drafter.text_alone or looks_up(self.drafter),
            most=0 if is_sampled and self._has_probs else most,
        )

    @property
    def untraceable(self) -> str | None:
        """Return why the draft cannot be traced; None: the draft can be traced."""
        if self.plan.tree:
            return "its drafts branch"
        if self.drafter.layers and not self._is_head:
            return "it draws on hidden states of the target"
        if self.of.sampled and not (self._has_probs or self._is_head):
            return "its distributions are known of its own drafts alone"
        return None

    def along(self, prompt: Sequence[int], tokens: Sequence[int], rows: list[Rows]) -> Along:
        """Return the trace along `tokens`, not [], by the pieces that `TextTracer.rows` yields."""
        layers = self.drafter.layers
        self._hidden = {n: torch.cat([piece.hidden[n] for piece in rows]) for n in layers}
        before = {layer: states[: len(prompt) - 1] for layer, states in self._hidden.items()}
        self.drafter.begin(prompt, Scores(rows[0].logits[:0], before))
        trace = self._sampled if self._has_probs else self._by_round
        return (trace if self.of.sampled else self._proposed)(prompt, tokens, rows)

    def _proposed(self, prompt: Sequence[int], tokens: Sequence[int], rows: list[Rows]) -> Proposed:
        """Return how many tokens are proposed before each of `tokens`, and hit, as [A * L] uint8.

        The positions of one K are together, after rounds of ArS. A is the number of `REQUESTED` K
        for look-ups whose shorter drafts may be others, else 1.
        """
        if looks_up(self.drafter):
            return proposed_by_k(self.drafter, prompt, tokens)
        counts, hits = [], []
        for t, context in enumerate(self._contexts(prompt, tokens, rows)):
            noise = PhiloxStream(0).round(t)
            proposal = self.drafter.draft(context, self.of.most, noise, always).tokens.tolist()
            counts.append(len(proposal))
            hits.append(count_agreeing(proposal, tokens, t))
        return Proposed(proposed=np.array(counts, np.uint8), hits=np.array(hits, np.uint8))

    def _contexts(
        self, prompt: Sequence[int], tokens: Sequence[int], rows: list[Rows]
    ) -> Iterator[Context]:
        """Yield what a drafter is given before each of `tokens`, after rounds of ArS."""
        text, last = list(prompt), None
        none, logits = torch.empty(0, dtype=torch.int64), torch.cat([x.logits for x in rows])
        by = self._processors
        processed = None if by is None else TextProcessors(by, len(prompt))
        for t, token in enumerate(tokens):
            yield Context(list(text), self.warp, last, processors=processed)
            verdict, at = Verdict(none, torch.tensor(token), torch.tensor(0)), len(text) - 1
            hidden = {layer: states[at : at + 1] for layer, states in self._hidden.items()}
            last = Step(Draft(none, None), Scores(logits[t : t + 1], hidden), verdict)
            text.append(token)

    def _by_round(
        self, prompt: Sequence[int], tokens: Sequence[int], rows: list[Rows]
    ) -> SampledDraft:
        """Compare a head and the target at each slot from each position; 0, False without draft.

        The columns are [L * depth], the slots of a position together.
        """
        drafter: Any = self.drafter
        logits, q = (torch.cat(parts) for parts in list(zip(*rows, strict=True))[:2])
        most, depth, left = self.of.most, 1, len(tokens)
        columns = {name: np.zeros((left, most)) for name in COLUMNS}
        ahead = torch.tensor([*tokens, *[tokens[-1]] * most])  # slots beyond the text count nothing
        for t, context in enumerate(self._contexts(prompt, tokens, rows)):
            if (draft := drafter.follow(context, ahead[t : t + most])) is None:
                continue
            depth, n = max(depth, len(draft.probs)), min(len(draft.probs), left - t)
            target = self._sized(Rows(logits[t:], q[t:]), draft.probs.shape[-1], n)
            at = ahead[t : t + n].to(draft.probs.device)
            for name, values in trace_columns(draft.probs[:n], draft.sure[:n], target, at).items():
                columns[name][t, :n] = to_numpy(values)
        whole: dict[str, Any] = {name: c[:, :depth].ravel() for name, c in columns.items()}
        return SampledDraft(**{**whole, "agrees": whole["agrees"] > 0}, depth=depth)

    def _sampled(
        self, prompt: Sequence[int], tokens: Sequence[int], rows: list[Rows]
    ) -> SampledDraft:
        """Compare drafter and target at each of `tokens`; 0 or False beyond the drafter's context.

        Adds where schedules that read distributions stop: see `scheduled_slots`. RuntimeError: the
        drafter has no probabilities for this text.
        """
        begin, limit = len(prompt), self.drafter.limit
        reach = None if limit is None else max(limit - begin, 0)
        text = [*prompt, *tokens[:reach]]
        columns: dict[str, list[Floats]] = {name: [] for name in COLUMNS}
        confident: list[Tensor] = []
        for piece in rows:
            end = min(begin + len(piece.q), len(text))
            if begin == end:  # beyond the context nothing is drafted
                break
            before = text[: end - 1]
            draft = self.drafter.along(text[:end], begin, self._warp_along(before, len(prompt)))
            if draft is None:
                raise RuntimeError(f"drafter {self.name} has probabilities for some texts only")
            target = self._sized(piece, draft.probs.shape[-1], end - begin)
            at = torch.tensor(text[begin:end], device=draft.probs.device)
            for name, values in trace_columns(draft.probs, draft.sure, target, at).items():
                columns[name].append(to_numpy(values))
            confident += [draft.sure] if self.schedules else []
            begin = end
        beyond = np.zeros(len(prompt) + len(tokens) - len(text))
        whole: dict[str, Any] = {n: np.concatenate([*c, beyond]) for n, c in columns.items()}
        whole["agrees"] = whole["agrees"] > 0
        sure = torch.cat(confident) if confident else torch.zeros(0, 0)
        stops = {
            name: scheduled_slots(schedule, sure, len(tokens), MAX_LOOKAHEAD)
            for name, schedule in self.schedules.items()
        }
        return SampledDraft(**whole, reach=reach, stops=stops)

    def _warp_along(self, text: Sequence[int], start: int) -> Callable[[Tensor], Tensor]:
        """Return the warp to probabilities of [n, V] logits after each of the last n of `text`.

        Its first `start` tokens are the prompt.
        """
        if self._processors is None:
            return self.warp
        return ProcessedWarp(
            partial(TextProcessors(self._processors, start).along, text=text), self.warp
        )

    def _sized(self, piece: Rows, size: int, count: int) -> Rows:
        """Return the target's distributions over the tokens that both models have."""
        logits, q = piece.logits[:count], piece.q[:count]
        if q.shape[-1] == size:
            return Rows(logits, q)
        return Rows(logits[:, :size], self.warp(logits[:, :size]))


def proposed_by_k(drafter: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Proposed:
    """Return look-ups before each token, [A * L], all of one K first.

    A is 1 where each of `REQUESTED` K's is the last one's, cut at K.
    """
    by_k = look_ups(drafter.proposals, [*prompt, *tokens], len(prompt), REQUESTED)
    proposed, hits = np.minimum(by_k, np.array(REQUESTED)[:, None]).astype(np.uint8)
    if all(
        (of_k == np.minimum(of_k[-1], np.array(REQUESTED)[:, None])).all()
        for of_k in (proposed, hits)
    ):
        return Proposed(proposed=proposed[-1], hits=hits[-1])
    return Proposed(proposed=proposed.ravel(), hits=hits.ravel(), requested=REQUESTED)


def trace_columns(p: Tensor, sure: Tensor, target: Rows, tokens: Tensor) -> dict[str, Tensor]:
    """Return `COLUMNS` -> [n] values, at `tokens` [n], of a draft's probabilities `p` [n, V].

    They are p of the token, the overlap sum_x min(p, q), entropy and greatest probability of `sure`
    [n, V], which is p before a greedy warp, and 1.0 where the likeliest token of `sure` is that of
    the target's logits.
    """
    return {
        "p": p.gather(1, tokens[:, None])[:, 0],
        "overlap": torch.minimum(p, target.q).sum(-1),
        "entropy": torch.special.entr(sure).sum(-1),
        "peak": sure.amax(-1),
        "agrees": (sure.argmax(-1) == target.logits.argmax(-1)).double(),
    }


def overrides(part: object, base: type, name: str) -> bool:
    """Return whether the class of `part` has another attribute `name` than the class `base`."""
    default = getattr(base, name)
    return getattr(type(part), name, default) is not default


def readers(cells: Sequence[Cell]) -> dict[str, Schedule]:
    """Return by name the schedules of `cells` whose `go_on` reads the distribution."""
    named = {str(cell.schedule): cell.schedule for cell in cells}
    by_name: dict[str, Schedule] = {name: make("schedules", spec) for name, spec in named.items()}
    return {name: s for name, s in by_name.items() if overrides(s, Schedule, "go_on")}


def scheduled_slots(schedule: Schedule, sure: Tensor, length: int, most: int) -> NDArray[np.uint8]:
    """Return [L] the slots, `most` at most, that a schedule drafts from each position along a text.

    `k` is called as in a first round: adaptation from round to round is left out. A schedule drafts
    its k where it goes on to the last row of `sure` [n, V], one a position, and where none is left.
    """
    stops = np.zeros(length, np.uint8)
    for at in range(length):
        k = min(schedule.k(()), most)
        rows = sure[at : at + k]
        taken = sum(1 for _ in takewhile(schedule.go_on, rows))
        stops[at] = k if taken == len(rows) else taken
    return stops
