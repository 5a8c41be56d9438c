"""Texts that run out of their budget: which token is forced, and the law that comes out."""

from dataclasses import dataclass

import pytest
import torch

from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import Pair, TableLM, normalised
from spsbench.loop.constraint import Constraint
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.automata import BRANCHES, FORKS, PAIRS, StateTable, case_of
from tests.decoding import output, rounds_of
from tests.variants import first

LOOP = StateTable(3, ({0: 0, 1: 1}, {0: 2}, {0: 0}), frozenset({2}), 2)
"""Texts go on in the first state; two more tokens end them, or begin again."""


class Counted:
    """An automaton of texts whose shortest end after n tokens has `length(n)` tokens."""

    def __init__(self, length):
        self.length, self.at, self.searched = length, 0, []

    def allowed(self):
        return torch.ones(10, dtype=torch.bool)

    def advance(self, token):
        self.at += 1
        return True

    def back(self, tokens):
        self.at -= tokens

    def end(self):
        self.searched.append(self.at)
        length = self.length(self.at)
        return None if length is None else (7,) * length


EOS = 9


def forced(length, budget, output):
    constraint = Constraint(Counted(length), frozenset({EOS}), closes=True)
    constraint.begin(0, budget, 10)
    return constraint.only(output)


@pytest.mark.parametrize(
    ("length", "budget", "output", "token"),
    [
        (3, 10, (1,) * 5, None),
        (3, 10, (1,) * 6, 7),
        (3, 10, (1,) * 6 + (7, 7), 7),
        (3, 10, (1,) * 6 + (7, 7, 7), EOS),
        (3, 10, (1,) * 6 + (7, 5), None),  # behind a refused token
        (0, 10, (1,) * 9, EOS),
        (3, 160, (1,) * 145, None),  # a sixteenth of a long text is to spare
        (3, 160, (1,) * 146, 7),
        (20, 10, (1,) * 9, None),  # no text is as short as the budget
    ],
    ids=str,
)
def test_an_end_is_followed_from_where_nothing_is_to_spare(length, budget, output, token):
    assert forced(lambda n: length, budget, output) == token


def test_a_text_without_a_known_end_is_searched_again():
    assert forced(lambda n: None if n < 20 else 3, 40, (1,) * 34) is not None
    assert forced(lambda n: None, 40, (1,) * 34) is None


def test_ends_are_searched_seldom():
    automaton = Counted(lambda n: 12)
    constraint = Constraint(automaton, frozenset({EOS}), closes=True)
    constraint.begin(0, 1000, 10)
    assert all(constraint.only((1,) * n) is None for n in range(900))
    assert len(automaton.searched) < 12


@dataclass(frozen=True)
class Closed(StateTable):
    """A table whose texts end within a budget below 16; masks are written down once more."""

    budget: int = 4

    def constraint(self, *args, **options):
        return super().constraint(*args, closes=True, **options)

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


def test_the_context_of_the_target_bounds_the_budget():
    lm = TableLM(lambda text: (0.5, 0.3, 0.2), 3, limit=7)
    constraint = closed(LOOP, 0).constraint()
    rounds = rounds_of(lm, tokens=15, prompt=(1,), k=0, constraint=constraint)
    assert output(rounds) == [0, 0, 0, 1, 0, 2]
    assert constraint.closed == 3
