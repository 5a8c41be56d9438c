"""Constrained texts: a target under a grammar is a language model of its own.

q'(x | text) = q(x | text) [x is allowed] / Z(text), where the mask comes before temperature, top-k,
top-p and min-p. The loop masks the target's logits, drafters mask their own, so verification is
exact over q' and p'. Masks belong to paths: each row of a tree has the mask of its own text.

A text that runs out of its budget takes a short way to its end. Which token is forced depends on
the text and the budget alone, so the distribution is the same with every way to draft.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.sampling import send_mask
from spsbench.loop.text import common_prefix
from spsbench.loop.types import Draft, Scores

Path = tuple[int, ...]
"""The tokens of a text after its prompt."""

END: Final = -1
"""In place of a token: the end of the text."""
BLIND = 8  # tokens before the next search where no end is found
MARGIN = 16  # a text is closed when it can spare a 16th of its budget, and no more


class DeadEndError(DataError):
    """A text that no token may follow, not even its end: by a grammar, or since all are banned."""


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


class Constraint:
    """The masks of one generation; its target and its draft share them, so each is made once.

    `automaton` is in its first state; `eos` are ids that end a text. If `weighs`, the target's mass
    on allowed tokens is added up in `removed_nats`; if `closes`, a text is to end within its
    budget, else it may be cut.

    Attributes:
        made, seconds: masks that were computed, and the time that it took.
        forced: emitted tokens that were the only ones allowed in their place.
        closed: emitted tokens that were forced so that the text ends within its budget.
        removed_nats: the sum of -log Z over the emitted tokens.
    """

    def __init__(
        self,
        automaton: Automaton,
        eos: frozenset[int],
        *,
        weighs: bool = False,
        closes: bool = False,
    ) -> None:
        self.eos, self.weighs, self._closes = eos, weighs, closes
        self.made, self.forced, self.closed = 0, 0, 0
        self.seconds, self.removed_nats = 0.0, 0.0
        self._automaton = automaton
        self._at: Path = ()  # the tokens that the automaton has read
        self._masks: dict[Path, Tensor | None] = {}
        self._ends: dict[Path, Path | None] = {}
        self._rows: list[Path] = []  # the outputs before the rows of the last pass
        self._nats: list[float] = []  # -log Z of these rows
        self._start, self._budget, self._free = 0, 0, torch.empty(0)

    def begin(self, start: int, budget: int, vocab_size: int) -> None:
        """Start after a prompt of `start` tokens; `budget` counts the end-of-text token too."""
        self._start, self._budget = start, budget
        self._free = torch.ones(vocab_size, dtype=torch.bool)
        self._free[list(self.eos)] = False

    def output(self, text: Sequence[int]) -> Path:
        """Return the tokens of a text after its prompt, which the grammar does not read."""
        return tuple(text[self._start :])

    def mask(self, output: Path) -> Tensor | None:
        """Return [V] bool, the tokens allowed after `output`, kept; None: none are, or it ended."""
        if output not in self._masks:
            began = time.perf_counter()
            self._masks[output] = self._make(output)
            self.seconds += time.perf_counter() - began
        return self._masks[output]

    def only(self, output: Path) -> int | None:
        """Return the one token that may follow `output`; None: there are several, or none."""
        mask = self.mask(output)
        return int(mask.int().argmax()) if mask is not None and is_forced(mask) else None

    def allowed(self, outputs: Iterable[Path]) -> Tensor:
        """Return [n, V] bool, the mask of each output; where `mask` is None, all tokens but EOS.

        So its distribution stays finite. An output has all tokens after the prompt; one behind a
        refused token is never reached, one behind a dead end may be, and then `count` raises.
        """
        masks = map(self.mask, outputs)
        return torch.stack([self._free if mask is None else mask for mask in masks])

    def masked(self, scores: Scores, text: Sequence[int], draft: Draft) -> Scores:
        """Return the target's scores of a draft after `text`, -inf where a token is not allowed.

        Each row has the mask of its own path; `text` has the prompt. Outputs before the rows, and
        with `weighs` their -log Z, are noted for `count`; masks of shorter outputs are dropped.
        """
        output = self.output(text)
        self._masks = {path: mask for path, mask in self._masks.items() if len(path) >= len(output)}
        rows = [(*output, *path) for path in draft.paths]
        self._rows, raw = rows, scores.logits
        logits = raw.masked_fill(~send_mask(self.allowed(rows), raw.device), -torch.inf)
        if self.weighs:
            mass = logits.double().logsumexp(-1) - raw.double().logsumexp(-1)
            self._nats = (-mass).clamp(min=0.0).tolist()
        return scores._replace(logits=logits)

    def count(self, kept: Sequence[int]) -> None:
        """Add the tokens of a round to `forced`, `closed` (one may be in both) and `removed_nats`.

        The tokens are those after row 0 of the last `masked`, and after the row of each of the
        `kept` nodes. Raises DeadEndError where one such row allowed no token.
        """
        for row in (0, *(node + 1 for node in kept)):
            output = self._rows[row]
            if (mask := self.mask(output)) is None:
                raise DeadEndError(
                    f"the grammar allows no token after {len(output)} tokens of output (position "
                    f"{self._start + len(output)}): expected one, or the end of the text. Change "
                    "the schema or the grammar"
                )
            self.forced += is_forced(mask)
            self.closed += self._closing_token(output) is not None
            self.removed_nats += self._nats[row] if self._nats else 0.0

    def _make(self, output: Path) -> Tensor | None:
        """Compute the mask of `output`, [V] bool, and count it in `made`; None: nothing may follow.

        Where `_closing_token` names a token, it is the only one allowed; for `END` the EOS ids are.
        An `output` that has ended or has a refused token gives None and is not counted.
        """
        if not self.eos.isdisjoint(output) or not self._move(output):
            return None
        self.made += 1
        mask = self._automaton.allowed()
        if not bool(mask.any()):
            return None
        if (token := self._closing_token(output)) is not None:
            mask = torch.zeros_like(mask)
            mask[list(self.eos) if token == END else token] = True
        return mask

    def _move(self, output: Path) -> bool:
        """Move the automaton to the state after `output`; false: to that before a refused token."""
        same = common_prefix(self._at, output)
        self._automaton.back(len(self._at) - same)
        self._at = output[:same]
        for token in output[same:]:
            if not self._automaton.advance(token):
                return False
            self._at += (token,)
        return True

    def _closing_token(self, output: Path) -> int | None:
        """Return the token that must follow `output`, or `END`; None: the text is free.

        It is always free unless `closes`. The automaton is asked for an end after few beginnings of
        the text, and its answers are kept: each leaves some tokens to spare, and half of them pass
        before the next search, since an end seldom grows faster than its text. After the first
        beginning whose end leaves next to nothing to spare, that end is followed.
        """
        at = 0
        while self._closes and at <= len(output):
            beginning = output[:at]
            if beginning not in self._ends:
                self._ends[beginning] = self._automaton.end() if self._move(beginning) else None
            if (end := self._ends[beginning]) is None:
                at += BLIND
                continue
            spare = self._budget - at - len(end) - 1
            over = spare - self._budget // MARGIN
            if spare >= 0 >= over:
                passed = len(output) - at
                follows = passed <= len(end) and output[at:] == end[:passed]
                return (*end, END)[passed] if follows else None
            at += max(1, abs(over) // 2)
        return None


def is_forced(mask: Tensor) -> bool:
    """Return whether a mask [V] allows one token only."""
    return int(mask.sum()) == 1
