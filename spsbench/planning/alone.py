"""Passes of the target alone, over few tokens or many, after several contexts."""

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import torch

from spsbench.loop.timing import Stopwatch, TimedLM
from spsbench.loop.types import LM
from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.surface import Surface


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
