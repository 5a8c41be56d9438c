"""Real rounds of the loop with one drafter, asked for each K in turn."""

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean

import numpy as np

from spsbench.loop.decode import never
from spsbench.loop.decoder import Decoder
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Limits, Round, Schedule
from spsbench.methods.build import LoadedDecoderContext
from spsbench.methods.resolve import warp
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.planning.in_turn import InTurn
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.spec import Spec

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
        self._context = RoundsContext(cell, loaded, self._schedule)
        self._decoder: Decoder = make("decoders", OWN, self._context)
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
        return done, self._context.draft_watch.lap(), self._context.target_watch.lap()
