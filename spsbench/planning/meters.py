"""Passes of the target alone, over few tokens or many, after several contexts."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.decode import decode, never
from spsbench.loop.decoder import Decoder
from spsbench.loop.drafter_context import Drawn, Plan
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import sample
from spsbench.loop.timing import Stopwatch, TimedLM
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
from spsbench.metrics.costs import Rule, Surface
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.spec import Spec


class Alone:
    """One session a context. A turn feeds it each number of tokens once, in an order of its own.

    Args:
        session: makes a session with the target.
        text: token ids, at least as many as the longest context and the largest pass take.
        sizes, contexts: tokens fed, and tokens cached before; both rising.
        device: the target's.
        draw: of the orders.
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
        self._lms = [TimedLM(session(), self._watch) for _ in contexts]
        self._turns: list[Floats] = []
        for lm, context in zip(self._lms, contexts, strict=True):
            lm.append(self._text[:context], keep=0)

    def turn(self) -> None:
        """Time every pass once, its rollback with it."""
        seconds = np.empty((len(self._sizes), len(self._contexts)))
        places = list(np.ndindex(*seconds.shape))
        self._draw.shuffle(places)
        for place in places:
            size, context = self._sizes[place[0]], self._contexts[place[1]]
            lm = self._lms[place[1]]
            lm.append(self._text[context : context + size], keep=size)
            lm.commit(context)
            seconds[place] = self._watch.lap()
        self._turns.append(seconds)

    def surface(self, turns: Sequence[int]) -> Surface:
        """What was measured in some of the turns."""
        return Surface(self._sizes, self._contexts, np.stack([self._turns[turn] for turn in turns]))


# The schedule of a measurement: every K once a turn.


class InTurn(Schedule):
    """Asks for the first of `ks` to warm up, then for each of them, in an order of its own."""

    def __init__(self, ks: Sequence[int], draw: Random) -> None:
        self._ks, self._draw = list(ks), draw
        self._left: list[int] = []
        self.asked = -1

    def k(self, history: Sequence[Round]) -> int:
        """The next of this turn; a text that has just begun begins a turn."""
        if not history or not self._left:
            self._left = self._draw.sample(self._ks, len(self._ks))
            self.asked = self._ks[0]
        else:
            self.asked = self._left.pop()
        return self.asked


# What the loop costs by itself: its own rounds, over models that take no time.

PROMPT = 16  # tokens; nothing looks at them
FLATTER = 0.8  # of the target's logits: the draft's, which are kept often but not always
ENDLESS = 1 << 20

Law = Callable[[Tensor], Tensor]


class FreeLM(LM):
    """A model whose logits are known before."""

    limit = None

    def __init__(self, logits: Tensor) -> None:
        self._logits, self._length = logits, 0
        self.vocab_size = logits.shape[-1]

    @property
    def length(self) -> int:
        """Tokens in no cache."""
        return self._length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """The first rows."""
        self._length += len(tokens)
        return Scores(self._logits[:keep], {})

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Count."""
        self._length = length + len(path or ())


class FreeDrafter(Drafter):
    """A drafter whose draft is known before; a chain, even where trees are drafted."""

    def __init__(self, draft: Draft, plan: Plan) -> None:
        self._draft = draft
        self.drawn, self.tree = plan.drawn, plan.tree

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Nothing to prepare."""

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """The first tokens."""
        made = self._draft
        return Draft(
            made.tokens[:k],
            None if made.probs is None else made.probs[:k],
            torch.arange(-1, k - 1) if self.tree and k else None,
        )


class TimedVerifier(Verifier):
    """A `Verifier` under a stopwatch."""

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY  # it promises nothing itself

    def __init__(self, verifier: Verifier, watch: Stopwatch) -> None:
        self._verifier, self._watch = verifier, watch
        self.__wrapped__ = verifier

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """As the rule inside."""
        return self._verifier.refuses(drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Timed."""
        with self._watch.running():
            return self._verifier(draft, q, noise)


def canned(logits: Tensor, warp: Law, drawn: Drawn) -> Draft:
    """[N, V] logits -> a draft of N tokens, drawn as `drawn` says, from laws close to theirs."""
    if drawn is Drawn.POINT:
        return Draft(logits.argmax(-1), None)
    laws = warp(logits * FLATTER)
    uniforms = PhiloxStream(0, "canned").round(0).uniform(Purpose.DRAFT, len(laws))
    return Draft(sample(laws, uniforms), laws)


class Free:
    """The loop with one rule over free models; a turn times each size of pass once.

    Args:
        logits: [M, V] of the target, M the largest pass.
        verifier, plan: the rule, and how what it rules on is drawn.
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
        self._schedule = InTurn([size - 1 for size in sizes], draw)
        self._turns: list[Floats] = []
        self._rounds = decode(
            [0] * PROMPT,
            target=FreeLM(logits),
            drafter=FreeDrafter(canned(logits[:-1], warp, plan.drawn), plan),
            verifier=TimedVerifier(verifier, self._verify),
            schedule=self._schedule,
            warp=self._law(warp),
            noise=PhiloxStream(0, "free"),
            limits=Limits(ENDLESS),
        )

    def turn(self) -> None:
        """Time a round of each size: laws, rule, and all the rest of it."""
        seconds = np.empty((3, len(self._sizes)))
        self._next()  # after other work the first is slower
        for _ in self._sizes:
            parts = self._next()
            seconds[:, self._sizes.index(self._schedule.asked + 1)] = parts
        self._turns.append(seconds)

    def rule(self, turns: Sequence[int]) -> Rule:
        """What was measured in some of the turns."""
        made = np.stack([self._turns[turn] for turn in turns])  # [T, 3, N]
        return Rule(*(Surface(self._sizes, (PROMPT,), made[:, i, :, None]) for i in range(3)))

    def _next(self) -> tuple[float, float, float]:
        whole = next(self._rounds).seconds
        sampling, verify = self._sampling.lap(), self._verify.lap()
        return sampling, verify, max(whole - sampling - verify, 0.0)

    def _law(self, warp: Law) -> Law:
        def timed(logits: Tensor) -> Tensor:
            with self._sampling.running():
                return warp(logits)

        return timed


# Real rounds of the loop with one drafter, asked for each K in turn.

SHORTEST = 64  # tokens, before a text is begun anew
DRIFT = 10  # turns with nothing rejected, after which the text is begun anew
OWN = Spec("native")


class RoundsContext(LoadedDecoderContext):
    """A context whose schedule is that of the measurement."""

    def __init__(self, cell: Cell, loaded: Loaded, schedule: Schedule) -> None:
        super().__init__(cell, loaded)
        self._schedule = schedule

    def schedule(self) -> Schedule:
        """The given one."""
        return self._schedule


def most_tokens(ks: Sequence[int]) -> int:
    """Tokens that a turn of rounds makes at most, the warm-up before it among them."""
    return sum(k + 1 for k in ks) + ks[0] + 1


class Rounds:
    """Rounds after one context; a turn times one of each K.

    The text is the drafter's and target's own, so a turn finds it a few tokens longer than the turn
    before; it is begun anew where it has become too long.

    Args:
        cell: whose drafter, verifier and warp; its schedule is not used.
        text: token ids, more of them than `context`.
        context: tokens that are cached when the text begins.
        ks: tokens to ask for.
        times: rounds of each K in a turn; their median is what the turn shows.
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
        self._warp, self._seed = warp(cell), cell.sampling.seed
        self._timed, self._schedule = [*ks] * times, InTurn([*ks] * times, draw)
        self._stand = RoundsContext(cell, loaded, self._schedule)
        self._decoder: Decoder = make("decoders", OWN, self._stand)
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
        found: dict[int, list[tuple[float, float, float, float]]] = {k: [] for k in self.ks}
        self._next()  # after other work the first is slower
        for _ in self._timed:
            done, draft, target = self._next()
            found[self._schedule.asked].append((done.drafted, draft, target, done.seconds))
        self._turns.append(np.array([np.median(found[k], axis=0) for k in self.ks]).T)

    def parts(self, turns: Sequence[int]) -> Floats:
        """[T, 4, K] in some of the turns: tokens drafted, then seconds of draft, target, round."""
        return np.stack([self._turns[turn] for turn in turns])

    @property
    def context(self) -> int:
        """Tokens that were cached on average when a turn began."""
        return round(fmean(self._lengths))

    def _begin(self) -> None:
        noise = PhiloxStream(self._seed, "costs", str(self._starts))
        self._starts, self._made = self._starts + 1, 0
        self._rounds: Iterator[Round] = self._decoder(
            self._prompt, limits=Limits(self._room), warp=self._warp, noise=noise, stop=never
        )

    def _next(self) -> tuple[Round, float, float]:
        done = next(self._rounds)
        self._made += len(done.tokens)
        return done, self._stand.draft_watch.lap(), self._stand.target_watch.lap()
