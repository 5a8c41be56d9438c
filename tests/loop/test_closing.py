"""Texts that run out of their budget: which token is forced, however a text is drafted."""

import pytest
import torch

from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.loop.constraint import Constraint
from spsbench.loop.types import Limits
from spsbench.methods.drafters.model import ModelDrafter
from tests.automata import FORKS, StateTable
from tests.decoding import output, rounds_of

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


@pytest.mark.parametrize("table", [LOOP, FORKS], ids=["loop", "forks"])
def test_a_closed_text_is_that_of_the_target_alone(table):
    closed = 0
    for seed in range(12):
        pair, texts = ToyPair(3, seed, ("plain",)), []
        for k in 0, 1, 2, 3:
            constraint = table.constraint(closes=True)
            parts = {"constraint": constraint, "limits": Limits(seed % 4 + 4, frozenset({2}))}
            drafter = ModelDrafter(TableLM(pair.p, 3))
            rounds = rounds_of(TableLM(pair.q, 3), drafter, prompt=(0, 1), k=k, **parts)
            texts.append((output(rounds), rounds[-1].finish))
            closed += constraint.closed
        assert texts == [texts[0]] * 4
    assert closed


def test_the_context_of_the_target_bounds_the_budget():
    lm = TableLM(lambda text: (0.5, 0.3, 0.2), 3, limit=7)
    constraint = LOOP.constraint(closes=True)
    rounds = rounds_of(lm, tokens=15, prompt=(1,), k=0, constraint=constraint)
    assert output(rounds) == [0, 0, 0, 1, 0, 2]
    assert constraint.closed == 3
