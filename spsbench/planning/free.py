"""What the loop costs by itself: its own rounds, over models that take no time.

The models' answers are there already, made once by the real target: so laws are made, a rule is
asked, its verdict is read, and nothing else takes time.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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
    Guarantee,
    Limits,
    Noise,
    Purpose,
    Scores,
    Verdict,
    Verifier,
)
from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.costs import Rule
from spsbench.planning.forecast.surface import Surface
from spsbench.planning.in_turn import InTurn

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
