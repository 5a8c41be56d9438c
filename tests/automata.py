"""Constraints small enough for enumeration: automata by tables, and distributions under them.

The loop is given `TableAutomaton`, with a stack of states that is rolled back. The expected
distributions come from `StateTable.constrained`, which reads each text from its first token on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.tables import Distribution, TableLM, ToyPair, normalise_weights
from spsbench.loop.constraint import Constraint
from spsbench.methods.verifiers.sps import Sps


@dataclass(frozen=True)
class StateTable:
    """An automaton over `vocab` tokens; it begins in state 0.

    Args:
        moves: of each state, token -> next state.
        accepting: states after which the text may end, by the token `eos`.
    """

    vocab: int
    moves: tuple[Mapping[int, int], ...]
    accepting: frozenset[int]
    eos: int

    def state(self, output: tuple[int, ...]) -> int | None:
        """Return the state after `output`, read from its first token on; None: there is none."""
        state = 0
        for token in output:
            if token not in self.moves[state]:
                return None
            state = self.moves[state][token]
        return state

    def follows(self, state: int) -> frozenset[int]:
        """Return the tokens that may follow in a state."""
        return frozenset(self.moves[state]) | ({self.eos} if state in self.accepting else set())

    def constrained(self, law: Distribution, start: int) -> Distribution:
        """Return `law` over the allowed tokens, for texts with a prompt of `start` tokens.

        After an output without a state, which no text has, it is `law` less the end of the text.
        """

        @cache
        def after(text: tuple[int, ...]) -> tuple[float, ...]:
            state = self.state(text[start:])
            every = set(range(self.vocab)) - {self.eos}
            allowed = every if state is None else self.follows(state)
            return normalise_weights([x if i in allowed else 0.0 for i, x in enumerate(law(text))])

        return after

    def constraint(self, kind: type[Constraint] = Constraint, **options: Any) -> Constraint:
        """Return the constraint of one generation."""
        return kind(TableAutomaton(self), frozenset({self.eos}), **options)


class TableAutomaton:
    """`loop.constraint.Automaton` over a `StateTable`, with a stack of states."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._states = [0]

    def allowed(self) -> Tensor:
        """Return [V] bool, the tokens that may follow."""
        mask = torch.zeros(self._table.vocab, dtype=torch.bool)
        mask[list(self._table.follows(self._states[-1]))] = True
        return mask

    def advance(self, token: int) -> bool:
        """Read a token; false where there is no such state."""
        state = self._table.moves[self._states[-1]].get(token)
        if state is not None:
            self._states.append(state)
        return state is not None

    def back(self, tokens: int) -> None:
        """Forget the last `tokens` states."""
        del self._states[len(self._states) - tokens :]

    def end(self) -> tuple[int, ...] | None:
        """Return the first of the shortest ways to a state where the text may end."""
        ways: list[tuple[int, tuple[int, ...]]] = [(self._states[-1], ())]
        seen: set[int] = set()
        for state, tokens in ways:
            if state in self._table.accepting:
                return tokens
            moves = self._table.moves[state] if state not in seen else {}
            seen.add(state)
            ways += [(after, (*tokens, token)) for token, after in sorted(moves.items())]
        return None


PAIRS = StateTable(3, ({0: 1}, {0: 2, 1: 0}, {1: 0, 0: 1}), frozenset({0, 2}), 2)
"""A first token that is forced, then ways that part."""
FORKS = StateTable(3, ({0: 1, 1: 2}, {0: 0, 1: 1}, {1: 0}), frozenset({1}), 2)
"""A choice at once, and states with one way on."""
BRANCHES = StateTable(
    4, ({0: 1, 1: 2, 2: 1}, {1: 2, 2: 0}, {0: 0, 1: 1, 2: 2}), frozenset({1, 2}), 3
)
"""Four tokens, so that masks leave a choice among siblings."""

WARPED = {"temperature": 1.5, "top_k": 2}
NUCLEUS = {"temperature": 0.7, "top_p": 0.8, "min_p": 0.05}
GREEDY = {"temperature": 0.0}

STRUCTURED: tuple[tuple[str, StateTable, ToyPair, dict[str, Any]], ...] = (
    ("pairs", PAIRS, ToyPair(3, 2, ("plain",)), {"tokens": 3}),
    ("forks", FORKS, ToyPair(3, 4, ("plain", "ties", "equal")), {"tokens": 3}),
    ("branches", BRANCHES, ToyPair(4, 3, ("plain",)), {"tokens": 2}),
    ("branches, top-k", BRANCHES, ToyPair(4, 5, ("plain", "ties")), {"tokens": 2, "warp": WARPED}),
    ("forks, top-p and min-p", FORKS, ToyPair(3, 6, ("plain",)), {"tokens": 3, "warp": NUCLEUS}),
    ("branches, greedy", BRANCHES, ToyPair(4, 7, ("plain", "ties")), {"tokens": 3, "warp": GREEDY}),
)
"""Name, automaton, distributions and options of each case."""


PROMPT = (0, 1)


class ConstrainedLM(TableLM):
    """A table under a constraint, as drafters that ask for one see it."""

    constrained = True


def case_of(table, pair, verifier=None, drawn=None, constraint=None, raw=False, **fields):
    """A case of texts under `table`.

    Args:
        constraint: makes that of a text, where it is not the table's.
        raw: the draft is drawn from the distribution without a mask.
    """
    verifier = Sps() if verifier is None else verifier
    rule = DiscoveredRule(verifier) if drawn is None else DiscoveredRule(verifier, drawn)
    fields = {"eos": frozenset({table.eos}), "prompt": PROMPT, "tokens": 3} | fields
    start = len(fields["prompt"])
    return Case(
        verifier,
        rule,
        table.constrained(pair.q, start),
        pair.p if raw else table.constrained(pair.p, start),
        pair.vocab,
        lm=lambda case, text, target: ConstrainedLM(
            pair.q if target else pair.p, pair.vocab, text=text, target=target
        ),
        constraint=constraint or table.constraint,
        **fields,
    )
