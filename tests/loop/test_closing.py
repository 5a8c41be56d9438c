"""Texts that run out of their budget: which token is forced, and the law that comes out."""

from dataclasses import dataclass, replace

import pytest
import torch

from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import Pair, TableLM, normalised
from spsbench.loop.closing import END, Closing
from spsbench.loop.constraint import MaskedLM
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.automata import BRANCHES, FORKS, PAIRS, StateTable, case_of
from tests.variants import first

LOOP = StateTable(3, ({0: 0, 1: 1}, {0: 2}, {0: 0}), frozenset({2}), 2)
"""Texts go on in the first state; two more tokens end them, or begin again."""


class Counted:
    """An automaton of texts whose shortest end after n tokens has `length(n)` tokens."""

    def __init__(self, length):
        self.length, self.at, self.looks = length, 0, []

    def move(self, path):
        self.at = len(path)
        return True

    def end(self):
        self.looks.append(self.at)
        length = self.length(self.at)
        return None if length is None else (7,) * length


def forced(length, budget, output):
    automaton = Counted(length)
    return Closing(automaton, automaton.move, budget).token(output)


def test_an_end_is_followed_from_where_nothing_is_to_spare():
    assert forced(lambda n: 3, 10, (1,) * 5) is None
    assert forced(lambda n: 3, 10, (1,) * 6) == 7
    assert forced(lambda n: 3, 10, (1,) * 6 + (7, 7)) == 7
    assert forced(lambda n: 3, 10, (1,) * 6 + (7, 7, 7)) == END
    assert forced(lambda n: 3, 10, (1,) * 6 + (7, 5)) is None  # behind a refused token
    assert forced(lambda n: 0, 10, (1,) * 9) == END


def test_a_long_text_is_closed_with_a_sixteenth_to_spare():
    assert forced(lambda n: 3, 160, (1,) * 145) is None
    assert forced(lambda n: 3, 160, (1,) * 146) == 7


def test_a_budget_below_the_shortest_text_forces_nothing():
    assert all(forced(lambda n: 20, 10, (1,) * n) is None for n in range(10))


def test_ends_are_looked_for_seldom():
    automaton = Counted(lambda n: 12)
    closing = Closing(automaton, automaton.move, 1000)
    for n in range(900):
        assert closing.token((1,) * n) is None
    assert len(automaton.looks) < 12


def test_a_text_without_a_known_end_is_looked_at_again():
    assert forced(lambda n: None if n < 20 else 3, 40, (1,) * 34) is not None
    assert forced(lambda n: None, 40, (1,) * 34) is None


@dataclass(frozen=True)
class Closed(StateTable):
    """A table whose texts end within a budget below 16; masks are written down once more."""

    budget: int = 4

    def constraint(self, start, budget=None):
        return super().constraint(start, self.budget)

    def allowed(self, output):
        state, at = 0, 0
        while at <= len(output):  # the first beginning that has no token to spare
            state = self.state(output[:at])
            if state is None:
                return set(range(self.vocab)) - {self.eos}
            end = self.shortest(state)
            over = self.budget - at - len(end) - 1
            if over == 0:
                passed = output[at:]
                if end[: len(passed)] != passed:
                    break
                return {(*end, self.eos)[len(passed)]}
            at += max(1, abs(over) // 2)
        state = self.state(output)
        return set(range(self.vocab)) - {self.eos} if state is None else set(self.follows(state))

    def shortest(self, state):
        ways = [()]
        while True:
            for way in ways:
                after = state
                for token in way:
                    after = self.moves[after][token]
                if after in self.accepting:
                    return way
            longer = []
            for way in ways:
                after = state
                for token in way:
                    after = self.moves[after][token]
                longer += [(*way, token) for token in sorted(self.moves[after])]
            ways = longer

    def constrained(self, law, start):
        def after(text):
            allowed = self.allowed(text[start:])
            return normalised([x if i in allowed else 0.0 for i, x in enumerate(law(text))])

        return after


def closed(table, budget):
    return Closed(table.vocab, table.moves, table.accepting, table.eos, budget)


@pytest.mark.parametrize(
    ("table", "verifier", "budget", "warp"),
    first(
        3,
        [
            (LOOP, Sps(), 4, {}),
            (FORKS, Match(), 3, {}),
            (PAIRS, Block(), 4, {"temperature": 0.0}),
            (LOOP, Block(), 4, {"temperature": 1.5, "top_k": 2}),
            (BRANCHES, Sps(), 3, {}),
            (PAIRS, Sps(), 4, {}),
        ],
    ),
    ids=str,
)
def test_the_law_of_closed_texts_is_that_of_the_target_alone(table, verifier, budget, warp):
    pair = Pair(table.vocab, 4, ("plain",))
    case = case_of(closed(table, budget), pair, verifier, tokens=budget, warp=warp)
    proof = prove(case)
    assert proof.exact
    left_open = case_of(table, pair, verifier, tokens=budget, warp=warp).expected()

    def cut(law):
        return sum(chance for (_, finish), chance in law.items() if finish == "length")

    assert cut(proof.low) < cut(left_open) or warp


def test_a_law_that_is_left_open_by_the_draft_alone_is_seen():
    """The draft must know the budget too, or its reported law is not the one it draws from."""
    pair = Pair(3, 4, ("plain",))

    def masked(lm, constraint, target):
        if target:
            return MaskedLM(lm, constraint, target=True)
        return MaskedLM(lm, LOOP.constraint(constraint.start))

    case = case_of(closed(LOOP, 4), pair, tokens=4, masked=masked)
    left_open = LOOP.constrained(pair.p, len(case.prompt))
    assert prove(replace(case, p=left_open)).exact  # a raw p is exact as well
    assert not prove(case).whole


def test_the_context_of_the_target_bounds_the_budget():
    constraint = closed(LOOP, 15).constraint(1)
    lm = TableLM(lambda text: (0.2, 0.3, 0.5), 3, limit=6)
    MaskedLM(lm, constraint, target=True)
    assert constraint.closes((0, 0))
    assert not closed(LOOP, 15).constraint(1).closes((0, 0))
    mask = constraint.mask((0, 0))
    assert torch.equal(mask, torch.tensor([False, True, False]))
