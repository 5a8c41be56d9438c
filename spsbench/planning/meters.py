"""Meters: passes of the target alone, the decoding loop alone, and real rounds of a drafter."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.batch import Batch
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


class PassMeter:
    """Passes of the target alone: a turn feeds each number of tokens once, in random order.

    Args:
        session: makes a session with the target.
        text: token ids, at least as many as the longest context and the largest pass take.
        sizes, contexts: tokens fed, and tokens cached before; both rising.
        device: the target's.
        draw: random source of the orders.
    """

    def __init__(
        self,
        session: Callable[[], LM],
        text: Sequence[int],
        sizes: Sequence[int],
        contexts: Sequence[int],
        device: torch.device,
        draw: Random,
    ) -> None:
        self._watch, self._draw = Stopwatch(device), draw
        self._sizes, self._contexts = tuple(sizes), tuple(contexts)
        self._text = torch.tensor(text[: contexts[-1] + sizes[-1]], dtype=torch.int64)
        self._lms = [session() for _ in contexts]
        self._turns: list[Floats] = []
        for lm, context in zip(self._lms, contexts, strict=True):
            lm.append(self._text[:context], keep=0)

    def turn(self) -> None:
        """Time every pass once, including its rollback."""
        seconds = np.empty((len(self._sizes), len(self._contexts)))
        places = list(np.ndindex(*seconds.shape))
        self._draw.shuffle(places)
        for place in places:
            size, context = self._sizes[place[0]], self._contexts[place[1]]
            lm = self._lms[place[1]]
            with self._watch.running():
                lm.append(self._text[context : context + size], keep=size)
                lm.commit(context)
            seconds[place] = self._watch.lap()
        self._turns.append(seconds)

    def surface(self, turns: Sequence[int]) -> Surface:
        """Return the measurements of some of the turns."""
        return Surface(self._sizes, self._contexts, np.stack([self._turns[turn] for turn in turns]))


class ShuffledSchedule(Schedule):
    """The schedule of a measurement: a warm-up with the first K, then each K in random order."""

    def __init__(self, ks: Sequence[int], draw: Random) -> None:
        self._ks, self._draw = list(ks), draw
        self._left: list[int] = []
        self.requested = -1

    def k(self, history: Sequence[Round]) -> int:
        """Return the next K of this turn; a new text begins a new turn."""
        if not history or not self._left:
            self._left = self._draw.sample(self._ks, len(self._ks))
            self.requested = self._ks[0]
        else:
            self.requested = self._left.pop()
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
        self._schedule = ShuffledSchedule([size - 1 for size in sizes], draw)
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
        self._next()  # the first round after other work is slower
        for _ in self._sizes:
            parts = self._next()
            seconds[:, self._sizes.index(self._schedule.requested + 1)] = parts
        self._turns.append(seconds)

    def rule(self, turns: Sequence[int]) -> Rule:
        """Return the measurements of some of the turns."""
        readings = np.stack([self._turns[turn] for turn in turns])  # [T, 3, N]
        return Rule(*(Surface(self._sizes, (PROMPT,), readings[:, i, :, None]) for i in range(3)))

    def _next(self) -> tuple[float, float, float]:
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


def most_tokens(ks: Sequence[int]) -> int:
    """Return the most tokens that a turn of rounds makes, including the warm-up."""
    return sum(k + 1 for k in ks) + ks[0] + 1


class RoundMeter:
    """Real rounds of the decoding loop after one context; a turn times one round of each K.

    Each turn starts a few tokens later; a text that becomes too long restarts.

    Args:
        cell: source of drafter, verifier and warp; the cell's schedule is not used.
        text: token ids, more of them than `context`.
        context: tokens cached when the text begins.
        ks: tokens to request.
        times: rounds of each K in a turn; the turn's value is their median.
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
    ) -> None:
        self._warp, self._seed = warp(cell), cell.seed
        self._timed, self._schedule = [*ks] * times, ShuffledSchedule([*ks] * times, draw)
        parts = RoundMeterContext(cell, loaded, self._schedule)
        self._decoder: Decoder = make("decoders", OWN, parts)
        self._prompt, self.ks = list(text[: context + 1]), tuple(ks)
        self._turn = most_tokens(self._timed)
        room = max(SHORTEST, DRIFT * self._turn)
        self._room = room if loaded.limit is None else min(room, loaded.limit - context - 1)
        self._starts = self._made = 0
        self._turns: list[Floats] = []
        self._lengths: list[float] = []
        self._begin()

    def turn(self) -> None:
        """Time one round of each K."""
        if self._made + self._turn > self._room:
            self._begin()
        self._lengths.append(len(self._prompt) - 1 + self._made)
        by_k: dict[int, list[tuple[float, float, float, float]]] = {k: [] for k in self.ks}
        self._next()  # the first round after other work is slower
        for _ in self._timed:
            done = self._next()
            parts = done.drafted, done.draft_seconds, done.target_seconds, done.seconds
            by_k[self._schedule.requested].append(parts)
        self._turns.append(np.array([np.median(by_k[k], axis=0) for k in self.ks]).T)

    def parts(self, turns: Sequence[int]) -> Floats:
        """Return [T, 4, K] of some turns: drafted tokens, then seconds of draft, target, round."""
        return np.stack([self._turns[turn] for turn in turns])

    @property
    def context(self) -> int:
        """Return the mean number of cached tokens at the start of a turn."""
        return round(fmean(self._lengths))

    def _begin(self) -> None:
        noise = PhiloxStream(self._seed, "costs", str(self._starts))
        self._starts, self._made = self._starts + 1, 0
        self._rounds: Iterator[Round] = self._decoder(
            self._prompt, limits=Limits(self._room), warp=self._warp, noise=noise, stop=never
        )

    def _next(self) -> Round:
        self._made += len((done := next(self._rounds)).tokens)
        return done
