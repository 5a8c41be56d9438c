"""Ends of constrained texts: a text that runs out of its budget takes a short way to its end.

Which token is forced depends on the text and its budget alone, so this is part of the constraint:
a target and its draft share it, and the law is the same with every way to draft.
"""

from collections.abc import Callable
from typing import Final, Protocol

from torch import Tensor

Path = tuple[int, ...]
"""The tokens of a text after its prompt."""

END: Final = -1
"""In place of a token: the end of the text."""
BLIND = 8  # tokens before the next look where no end is found
MARGIN = 16  # a text is closed when it can spare a 16th of its budget, and no more


class Automaton(Protocol):
    """The states of a grammar, over tokens; it never reads an end-of-text token."""

    def allowed(self) -> Tensor:
        """Return [V] bool, the tokens that may follow; EOS ids where the text is complete."""

    def advance(self, token: int) -> bool:
        """Read a token; false, with the state as before, where there is no such state."""

    def back(self, tokens: int) -> None:
        """Return to the state before the last `tokens` tokens."""

    def end(self) -> Path | None:
        """Return few tokens after which the text may end; None: none are found."""


class Closing:
    """Decides which token a text must take to end within its budget.

    Ends are looked for after few of the text's beginnings: each tells how many tokens are left to
    spare, and half of them pass before the next look, since an end seldom grows faster than its
    text. From the first beginning with nothing to spare its end is followed.

    Args:
        automaton: shared with the constraint.
        move: brings it to the state after a text.
        budget: tokens of a text, its end-of-text token included.
    """

    def __init__(self, automaton: Automaton, move: Callable[[Path], bool], budget: int) -> None:
        self.budget = budget
        self._automaton, self._move = automaton, move
        self._ends: dict[Path, Path | None] = {}

    def token(self, output: Path) -> int | None:
        """Return the token that must follow `output`, or `END`; None: the text is free."""
        at = 0
        while at <= len(output):
            end = self._end(output[:at])
            if end is None:
                at += BLIND
                continue
            spare = self.budget - at - len(end) - 1
            over = spare - self.budget // MARGIN
            if spare >= 0 >= over:
                passed = len(output) - at
                follows = passed <= len(end) and output[at:] == end[:passed]
                return (*end, END)[passed] if follows else None
            at += max(1, abs(over) // 2)
        return None

    def _end(self, path: Path) -> Path | None:
        if path not in self._ends:
            self._ends[path] = self._automaton.end() if self._move(path) else None
        return self._ends[path]
