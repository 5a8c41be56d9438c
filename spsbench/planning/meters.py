"""Meters: passes of the target alone, the decoding loop alone, and real rounds of a drafter."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.batch import TARGET, Batch, BatchedLM
from spsbench.loop.decode import decode, never
from spsbench.loop.decoder import Decoder
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
    Guarantee,
    Limits,
    Noise,
    Purpose,
    Round,
    Schedule,
    Scores,
    Verdict,
    Verifier,
)
from spsbench.methods.build import LoadedDecoderContext
from spsbench.methods.resolve import warp
from spsbench.metrics.costs import Rule
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import Surface
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.spec import Spec

Made = TypeVar("Made")


class PassMeter:
    """Passes of the target after one context; a turn makes each size once, in random order.

    Args:
        sessions: with the target, one for each text of the largest batch.
        text: token ids, at least as many as a session is fed.
        sizes, tokens: texts of a batch, and tokens fed to each; both rising.
        context: tokens cached before.
        device: the target's.
        draw: random source of the orders.
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
        self._batch = batch_of(sizes)
        batched = self._batch
        self._lms = [lm if batched is None else BatchedLM(lm, batched, TARGET) for lm in sessions]
        self._turns: list[Floats] = []
        for number, lm in enumerate(self._lms):
            lm.append(self._text[:context].roll(number), keep=0)

    def turn(self) -> None:
        """Time every pass once, including its rollback."""
        seconds = np.empty((len(self._sizes), len(self._tokens)))
        for place in self._draw.sample(places := list(np.ndindex(*seconds.shape)), len(places)):
            lms, n = self._lms[: self._sizes[place[0]]], self._tokens[place[1]]
            with self._watch.running():
                together(self._batch, [partial(self._pass, lm, n) for lm in lms])
            seconds[place] = self._watch.lap()
        self._turns.append(seconds)

    def of(self, turns: Sequence[int]) -> Floats:
        """Return [T, B, N] seconds of some of the turns."""
        return np.stack([self._turns[turn] for turn in turns])

    def _pass(self, lm: LM, n: int) -> None:
        lm.append(self._text[self._context : self._context + n], keep=n)
        lm.commit(self._context)


def batch_of(sizes: Sequence[int]) -> Batch | None:
    """Return a batch of the greatest of some sizes; None: one text alone needs none."""
    return Batch(sizes[-1], continuous=True) if sizes[-1] > 1 else None


def together(batch: Batch | None, calls: Sequence[Callable[[], Made]]) -> list[Made]:
    """Return what calls make as rows of a batch; one alone runs without it."""
    if batch is None or len(calls) == 1:
        return [call() for call in calls]
    return [row.result for row in sorted(batch.run(calls), key=lambda row: row.number)]


class GivenSchedule(Schedule):
    """A schedule whose K the measurement sets before each round."""

    requested = 0

    def k(self, history: Sequence[Round]) -> int:
        """Return the K that was set."""
        return self.requested


PROMPT = 16  # tokens, of arbitrary content
FLATTER = 0.8  # share of the target's logits in the draft's, for a high but imperfect acceptance
ENDLESS = 1 << 20

Law = Callable[[Tensor], Tensor]


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
        """Return the first tokens of the draft."""
        whole = self._draft
        return Draft(
            whole.tokens[:k],
            None if whole.probs is None else whole.probs[:k],
            torch.arange(-1, k - 1) if self.tree and k else None,
        )


class TimedVerifier(Verifier):
    """A `Verifier` that measures the time of the rule."""

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY  # makes no promise itself

    def __init__(self, verifier: Verifier, watch: Stopwatch) -> None:
        self._verifier, self._watch = verifier, watch
        self.__wrapped__ = verifier

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Return the reason of the wrapped rule."""
        return self._verifier.refuses(drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Run the wrapped rule and measure its time."""
        with self._watch.running():
            return self._verifier(draft, q, noise)


def sample_draft(logits: Tensor, warp: Law, drawn: Drawn) -> Draft:
    """Return a draft of N tokens from [N, V] logits, sampled from close distributions."""
    if drawn is Drawn.POINT:
        return Draft(logits.argmax(-1), None)
    laws = warp(logits * FLATTER)
    uniforms = PhiloxStream(0, "canned").round(0).uniform(Purpose.DRAFT, len(laws))
    return Draft(sample(laws, uniforms), laws)


class LoopMeter:
    """The decoding loop with one rule over precomputed models; a turn times each pass size once.

    Args:
        logits: [M, V] of the target, M the largest pass.
        verifier, plan: the rule, and how its drafts are sampled.
        sizes: of passes, N + 1 tokens.
    """

    def __init__(
        self,
        logits: Tensor,
        warp: Law,
        verifier: Verifier,
        plan: Plan,
        sizes: Sequence[int],
        draw: Random,
    ) -> None:
        self._sizes = tuple(sizes)
        self._sampling, self._verify = Stopwatch(logits.device), Stopwatch(logits.device)
        self._schedule, self._draw = GivenSchedule(), draw
        self._turns: list[Floats] = []
        self._rounds = decode(
            [0] * PROMPT,
            target=PrecomputedLM(logits),
            drafter=PrecomputedDrafter(sample_draft(logits[:-1], warp, plan.drawn), plan),
            verifier=TimedVerifier(verifier, self._verify),
            schedule=self._schedule,
            warp=self._law(warp),
            noise=PhiloxStream(0, "free"),
            limits=Limits(ENDLESS),
        )

    def turn(self) -> None:
        """Time a round of each size: warp, rule, and the rest of the loop."""
        seconds = np.empty((3, len(self._sizes)))
        self._next(self._sizes[0])  # the first round after other work is slower
        for i in self._draw.sample(range(len(self._sizes)), len(self._sizes)):
            seconds[:, i] = self._next(self._sizes[i])
        self._turns.append(seconds)

    def rule(self, turns: Sequence[int]) -> Rule:
        """Return the measurements of some of the turns."""
        readings = np.stack([self._turns[turn] for turn in turns])  # [T, 3, N]
        return Rule(*(Surface(self._sizes, (PROMPT,), readings[:, i, :, None]) for i in range(3)))

    def _next(self, size: int) -> tuple[float, float, float]:
        self._schedule.requested = size - 1
        whole = next(self._rounds).seconds
        sampling, verify = self._sampling.lap(), self._verify.lap()
        return sampling, verify, max(whole - sampling - verify, 0.0)

    def _law(self, warp: Law) -> Law:
        def timed(logits: Tensor) -> Tensor:
            with self._sampling.running():
                return warp(logits)

        return timed


SHORTEST = 64  # tokens before a text restarts
DRIFT = 10  # turns without a rejection, after which the text restarts
OWN = Spec("native")


class RoundMeterContext(LoadedDecoderContext):
    """A decoder context with the schedule of the measurement."""

    def __init__(
        self, cell: Cell, loaded: Loaded, schedule: Schedule, batch: Batch | None = None
    ) -> None:
        super().__init__(cell, loaded, batch)
        self._schedule = schedule

    def schedule(self) -> Schedule:
        """Return the given schedule."""
        return self._schedule


def turn_tokens(ks: Sequence[int], batches: int = 1) -> int:
    """Return the most tokens of a text that a turn of rounds makes, and the round of its prompt."""
    return batches * (sum(k + 1 for k in ks) + ks[0] + 1) + ks[0] + 1


class RoundMeter:
    """Real rounds of the decoding loop after one context; a turn times one round of each K.

    Each turn starts a few tokens later; texts that become too long restart.

    Args:
        cell: source of drafter, verifier and warp; the cell's schedule is not used.
        text: token ids, more of them than `context`.
        context: tokens cached when a text begins.
        ks: tokens to request, rising.
        times: rounds of each K in a turn; the turn's value is their median.
        sizes: texts that make their rounds together, rising.
    """

    def __init__(
        self,
        cell: Cell,
        loaded: Loaded,
        text: Sequence[int],
        context: int,
        ks: Sequence[int],
        draw: Random,
        times: int = 1,
        sizes: Sequence[int] = (1,),
    ) -> None:
        self._warp, self._seed = warp(cell), cell.seed
        self._schedule, self._batch, self._draw = GivenSchedule(), batch_of(sizes), draw
        self._prompt, self._context = list(text[: context + 1]), context
        self.ks, self.sizes, self._times = tuple(ks), tuple(sizes), times
        self._turn = turn_tokens([*ks] * times, len(sizes))
        room = max(SHORTEST, DRIFT * self._turn)
        self._room = room if loaded.limit is None else min(room, loaded.limit - context - 1)
        contexts = [
            RoundMeterContext(cell, loaded, self._schedule, self._batch) for _ in range(sizes[-1])
        ]
        self._decoders: list[Decoder] = [make("decoders", OWN, parts) for parts in contexts]
        self._starts = 0
        self._rows, self._written = list[Iterator[Round]](), list[int]()  # of each text, its tokens
        self._turns: list[Floats] = []

    def turn(self) -> None:
        """Time one round of each K in each size of batch."""
        if not self._rows or max(self._written) + self._turn > self._room:
            self._begin()
        readings = np.empty((5, len(self.sizes), len(self.ks)))
        for at, size in enumerate(self.sizes):
            self._round(size, self.ks[0])  # the first round after other work is slower
            by_k: dict[int, list[Sequence[float]]] = {k: [] for k in self.ks}
            timed = [*self.ks] * self._times
            for k in self._draw.sample(timed, len(timed)):
                by_k[k].append(self._round(size, k))
            readings[:, at] = np.array([np.median(by_k[k], axis=0) for k in self.ks]).T
        self._turns.append(readings)

    def of(self, turns: Sequence[int]) -> Floats:
        """Return [T, 5, B, K] of some turns.

        Tokens drafted a text, seconds of draft, target and whole round, and tokens cached before.
        """
        return np.stack([self._turns[turn] for turn in turns])

    @property
    def context(self) -> int:
        """Return the mean number of tokens that were cached before the rounds."""
        return round(float(np.mean([readings[-1] for readings in self._turns])))

    def _begin(self) -> None:
        self._schedule.requested = self.ks[0]
        self._rows = [self._row(number) for number in range(self.sizes[-1])]
        self._written = [next(row).emitted for row in self._rows]  # prefills, untimed
        self._starts += 1

    def _row(self, number: int) -> Iterator[Round]:
        shift = number % len(self._prompt)
        prompt = [*self._prompt[shift:], *self._prompt[:shift]]
        noise = PhiloxStream(self._seed, "costs", str(self._starts), number)
        limits = Limits(self._room)
        decoder = self._decoders[number]
        return iter(decoder(prompt, limits=limits, warp=self._warp, noise=noise, stop=never))

    def _round(self, size: int, k: int) -> tuple[float, ...]:
        """Make a common round; its texts are those of the first rows."""
        self._schedule.requested = k
        context = self._context + float(np.mean(self._written[:size]))
        began = time.perf_counter()
        rounds = together(self._batch, [partial(next, row) for row in self._rows[:size]])
        seconds = rounds[0].seconds if size == 1 else time.perf_counter() - began
        for number, done in enumerate(rounds):
            self._written[number] += done.emitted
        drafted = float(np.mean([done.drafted for done in rounds]))
        return drafted, rounds[0].draft_seconds, rounds[0].target_seconds, seconds, context
