"""Cases of one round at larger K: what a walk over whole texts cannot reach.

A text of K + 1 tokens takes up to K + 1 rounds, and their paths multiply: whole texts are walked
at K = 2. One round has few: some hundreds at K = 6 with two tokens. The noise of a round is fresh,
so a round that is exact after any text makes texts that are.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from spsbench.audit.exact.tables import Pair
from spsbench.loop.types import Guarantee, Schedule
from spsbench.methods.schedules.constant import Constant

MOST = 6  # the largest K

GREEDY = {"warp": {"temperature": 0.0}}


class OneRound(NamedTuple):
    """A case of one round: its name, laws, and the rest."""

    name: str
    pair: Pair
    lookahead: int
    fields: dict[str, Any]
    prompt: tuple[int, ...] = (0, 1, 0, 1, 0)

    @property
    def case(self) -> dict[str, Any]:
        """The fields of a `Case`: texts of K + 1 tokens, so that the first round may draft K."""
        return {"tokens": self.lookahead + 1, "one_round": True, **self.fields}


SURE = ("plain", "sure", "sure")

ROUNDS = (
    *(OneRound("two tokens", Pair(2, 40 + k, ("plain",)), k, {}) for k in (3, 4)),
    *(
        OneRound("a sure draft model", Pair(2, seed, SURE), k, {})
        for k, seed in ((5, 65), (MOST, 53))
    ),
    *(
        OneRound("ties, zeros, disjoint laws", Pair(2, 60 + k), k, {}, (1, 0, 0, 1, 0, 0, 1))
        for k in range(3, MOST)
    ),
    OneRound(
        "three tokens, warped",
        Pair(3, 8, ("plain", "ties")),
        3,
        {"warp": {"temperature": 1.5, "top_k": 2}},
        (2, 0, 1, 2, 0, 1),
    ),
    OneRound("greedy", Pair(3, 9), MOST, GREEDY),
)
"""Walked in the order of K, so that a rule which is wrong from some slot on is found at its first
K. Most paths of a long draft differ in tokens alone: a sure draft model leaves those out."""

DEEP = tuple(OneRound("two tokens", Pair(2, 40 + k, ("plain",)), k, {}) for k in (5, MOST))
"""With every value of long drafts: hundreds of paths for each rule."""


def one_rounds(
    claim: Guarantee,
    schedule: Callable[[], Schedule],
    most: int = MOST,
    *,
    deep: bool = False,
    small: bool = False,
) -> Iterator[tuple[OneRound, Schedule]]:
    """The cases up to K = `most` for a rule of some promise, each with its schedule.

    With `deep` there are more, with `small` those over two tokens alone. A schedule that is not
    constant chooses K itself, up to the largest.
    """
    constant = isinstance(schedule(), Constant)
    for one in sorted((*ROUNDS, *(DEEP if deep else ())), key=lambda one: one.lookahead):
        if claim is Guarantee.GREEDY and one.fields != GREEDY:
            continue
        if (one.lookahead > most or (small and one.pair.vocab > 2)) and one.fields != GREEDY:
            continue
        if constant:
            yield one, Constant(one.lookahead)
        elif one.lookahead == MOST:
            yield one, schedule()
