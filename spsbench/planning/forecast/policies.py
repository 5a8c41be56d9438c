"""How many tokens the next round drafts: a constant, or a schedule that looks back."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Turn(NamedTuple):
    """A round as a schedule may see it in a replay: `loop.types.Round`, field by field.

    `tokens` holds zeros: how many there are is right, which ones is not told. Times are not known.
    """

    drafted: int
    tested: int
    accepted: int
    tokens: list[int]
    overlap: float | None
    seconds: float = 0.0
    finish: None = None
    laws: None = None
    tree: None = None
    processor: None = None
    experts: None = None

    @property
    def depth(self) -> int:
        """All that was drafted: a chain."""
        return self.drafted

    @property
    def full(self) -> bool:
        """Whether no drafted token was rejected."""
        return self.accepted == self.drafted


class Policy(Protocol):
    """A schedule as a machine: a state, K in it, and the state after a round."""

    def begin(self) -> Hashable:
        """The state before the first round."""

    def k(self, state: Any) -> int:
        """Tokens to draft."""

    def after(self, state: Any, turn: Turn) -> Hashable:
        """The state after a round. States that are equal decide alike for ever."""


@dataclass(frozen=True)
class Always:
    """The same K in every round."""

    lookahead: int

    def begin(self) -> Hashable:
        """Nothing is remembered."""
        return None

    def k(self, state: Any) -> int:
        """K."""
        return self.lookahead

    def after(self, state: Any, turn: Turn) -> Hashable:
        """Nothing is remembered."""
        return None


class Past:
    """A history; equal to another from which the schedule will decide alike."""

    def __init__(self, turns: tuple[Turn, ...], key: Hashable) -> None:
        self.turns, self.key = turns, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Past) and self.key == other.key


class Growing:
    """A schedule of the loop over one list that grows, as the loop has it: for one throw."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def begin(self) -> Hashable:
        """No rounds yet."""
        self._turns: list[Turn] = []
        return None

    def k(self, state: Any) -> int:
        """What the schedule says."""
        return int(self._schedule.k(self._turns))

    def after(self, state: Any, turn: Turn) -> Hashable:
        """One round more."""
        self._turns.append(turn)
        return None


class Follows:
    """A schedule of the loop: `k(history)`, a function of the rounds so far.

    A schedule that offers `memory(history) -> Hashable`, what of the past decides all that it will
    ever say, is replayed exactly however long the text is: histories with the same memory are one.
    Without it every history is a state of its own, and soon there are too many.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self._memory = getattr(schedule, "memory", None)

    @property
    def forgets(self) -> bool:
        """Whether different histories may be one state."""
        return self._memory is not None

    def begin(self) -> Hashable:
        """No rounds yet."""
        return self._past(())

    def k(self, state: Past) -> int:
        """What the schedule says."""
        return int(self.schedule.k(state.turns))

    def after(self, state: Past, turn: Turn) -> Hashable:
        """One round more."""
        return self._past((*state.turns, turn))

    def _past(self, turns: tuple[Turn, ...]) -> Past:
        return Past(turns, self._key(turns))

    def _key(self, turns: Sequence[Turn]) -> Hashable:
        if self._memory is not None:
            key: Hashable = self._memory(turns)
            return key
        return tuple((turn.drafted, turn.accepted) for turn in turns)
