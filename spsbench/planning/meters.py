"""Meters of parts of a round: passes of the target alone, and the decoding loop alone."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.batch import TARGET, BatchedLM
from spsbench.loop.decode import decode
from spsbench.loop.drafter_context import Drawn, Plan
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import sample
from spsbench.loop.timing import Stopwatch
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    GoOn,
    Limits,
    Noise,
    Purpose,
    Scores,
    Verifier,
)
from spsbench.methods.measured_costs import GivenSchedule, greatest_batch, together
from spsbench.metrics.costs import Rule
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import Surface
from spsbench.settings.processors import Processors


class PassMeter:
    """Passes of the target after one context; a turn makes each size once, in random order.

    `sessions` are with the target, one for each text of the largest batch, which is fed from
    `text`. `sizes` are texts of a batch and `tokens` those fed to each, both rising; `context`
    tokens are cached before. `device` is the target's; `draw` gives the orders.
    """

    def __init__(
        self,
        sessions: Sequence[LM],
        text: Sequence[int],
        sizes: Sequence[int],
        tokens: Sequence[int],
        context: int,
        device: torch.device,
        draw: Random,
    ) -> None:
        self._watch, self._draw = Stopwatch(device), draw
        self._sizes, self._tokens, self._context = tuple(sizes), tuple(tokens), context
        self._text = torch.tensor(text[: context + tokens[-1]], dtype=torch.int64)
        batch = self._batch = greatest_batch(sizes)
        self._lms = [lm if batch is None else BatchedLM(lm, batch, TARGET) for lm in sessions]
        self._turns: list[Floats] = []
        for number, lm in enumerate(self._lms):
            lm.append(self._text[:context].roll(number), keep=0)

    def turn(self) -> None:
        """Time a pass and its rollback by batch size and token count, shuffled; `of` returns it."""
        seconds = np.empty((len(self._sizes), len(self._tokens)))
        for place in self._draw.sample(places := list(np.ndindex(*seconds.shape)), len(places)):
            lms, n = self._lms[: self._sizes[place[0]]], self._tokens[place[1]]
            with self._watch.running():
                together(self._batch, [partial(self._pass, lm, n) for lm in lms])
            seconds[place] = self._watch.lap()
        self._turns.append(seconds)

    def of(self, turns: Sequence[int]) -> Floats:
        """Return the seconds [T, B, N] of these turns, by size of batch and number of tokens."""
        return np.stack([self._turns[turn] for turn in turns])

    def _pass(self, lm: LM, n: int) -> None:
        lm.append(self._text[self._context : self._context + n], keep=n)
        lm.commit(self._context)


PROMPT = 16  # tokens, of arbitrary content
FLATTER = 0.8  # share of the target's logits in the draft's, for a high but imperfect acceptance
ENDLESS = 1 << 20

ToProbs = Callable[[Tensor], Tensor]


class PrecomputedLM(LM):
    """A model with precomputed logits, which takes no time."""

    limit = None

    def __init__(self, logits: Tensor) -> None:
        self._logits, self._length = logits, 0
        self.vocab_size = logits.shape[-1]

    @property
    def length(self) -> int:
        """Return the number of tokens; there is no cache."""
        return self._length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Return the first rows of the logits."""
        self._length += len(tokens)
        return Scores(self._logits[:keep], {})

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Set the number of tokens."""
        self._length = length + len(path or ())


class PrecomputedDrafter(Drafter):
    """A drafter with a precomputed draft; a chain, even where trees are drafted."""

    def __init__(self, draft: Draft, plan: Plan) -> None:
        self._draft = draft
        self.drawn, self.tree = plan.drawn, plan.tree

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Do nothing: there is nothing to prepare."""

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return the first k tokens of the precomputed draft as a chain, whatever the `context`."""
        whole = self._draft
        return Draft(
            whole.tokens[:k],
            None if whole.probs is None else whole.probs[:k],
            torch.arange(-1, k - 1) if self.tree and k else None,
        )


def sample_draft(logits: Tensor, warp: ToProbs, drawn: Drawn) -> Draft:
    """Return a draft of N tokens from [N, V] logits: the argmax for `POINT`, else sampled."""
    if drawn is Drawn.POINT:
        return Draft(logits.argmax(-1), None)
    probs = warp(logits * FLATTER)
    uniforms = PhiloxStream(0, "canned").round(0).uniform(Purpose.DRAFT, len(probs))
    return Draft(sample(probs, uniforms), probs)


class LoopMeter:
    """The decoding loop with one rule over precomputed models; a turn times each pass size once.

    `logits` are the target's [M, V], M the largest pass; `sizes` are those of passes, N + 1 tokens.
    `verifier` is the rule, and `plan` says how its drafts are sampled. `processors` are those of
    the texts, whose time is the loop's; None: there are none.
    """

    def __init__(
        self,
        logits: Tensor,
        warp: ToProbs,
        verifier: Verifier,
        plan: Plan,
        sizes: Sequence[int],
        draw: Random,
        processors: Processors | None = None,
    ) -> None:
        self._sizes = tuple(sizes)
        self._sampling, self._verify = Stopwatch(logits.device), Stopwatch(logits.device)
        self._schedule, self._draw = GivenSchedule(), draw
        self._turns: list[Floats] = []
        rule: Any = self._verify.running()(verifier)  # a function: a call runs the rule, timed
        rule.refuses = verifier.refuses
        self._rounds = decode(
            [0] * PROMPT,
            target=PrecomputedLM(logits),
            drafter=PrecomputedDrafter(sample_draft(logits[:-1], warp, plan.drawn), plan),
            verifier=rule,
            schedule=self._schedule,
            warp=self._sampling.running()(warp),
            noise=PhiloxStream(0, "free"),
            limits=Limits(ENDLESS),
            processors=processors,
        )

    def turn(self) -> None:
        """Time a round of each size in random order: warp, rule, and the rest of the loop."""
        seconds = np.empty((3, len(self._sizes)))
        self._next(self._sizes[0])  # the first round after other work is slower
        for i in self._draw.sample(range(len(self._sizes)), len(self._sizes)):
            seconds[:, i] = self._next(self._sizes[i])
        self._turns.append(seconds)

    def rule(self, turns: Sequence[int]) -> Rule:
        """Return sampling, verify and the rest of the loop in these turns, by pass size."""
        readings = np.stack([self._turns[turn] for turn in turns])  # [T, 3, N]
        return Rule(*(Surface(self._sizes, (PROMPT,), readings[:, i, :, None]) for i in range(3)))

    def _next(self, size: int) -> tuple[float, float, float]:
        self._schedule.requested = size - 1
        whole = next(self._rounds).seconds
        sampling, verify = self._sampling.lap(), self._verify.lap()
        return sampling, verify, max(whole - sampling - verify, 0.0)
