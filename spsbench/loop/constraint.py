"""Constrained texts: a target under a grammar is a language model of its own.

q'(x | text) = q(x | text) [x is allowed] / Z(text), where the mask comes before temperature, top-k,
top-p and min-p. `MaskedLM` wraps the sessions of target and draft, so the loop, its verifiers and
its drafters run unchanged and exact over q' and p'. Masks belong to paths, not to rows: each row of
a tree has the mask of its own text.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.closing import END, Automaton, Closing, Path
from spsbench.loop.sampling import send
from spsbench.loop.text import common_prefix
from spsbench.loop.types import LM, Scores


class DeadEndError(DataError):
    """A grammar that allows no token after the text, not even the end of it."""


class Constraint:
    """The masks of one generation; its target and its draft share them, so each is made once.

    Args:
        automaton: in its first state.
        eos: ids that end a text.
        start: tokens of the prompt, which the grammar does not read.
        weighs: add up the target's mass on allowed tokens, in `removed_nats`.
        budget: tokens within which a text is to end, its end-of-text token included; None: it
            may be cut.

    Attributes:
        made, seconds: masks that were computed, and the time that it took.
        forced: emitted tokens that were the only ones allowed in their place.
        closed: emitted tokens that were forced so that the text ends within its budget.
        removed_nats: of the emitted tokens, the sum of -log Z.
    """

    def __init__(
        self,
        automaton: Automaton,
        eos: frozenset[int],
        start: int,
        *,
        weighs: bool = False,
        budget: int | None = None,
    ) -> None:
        self.eos, self.start, self.weighs = eos, start, weighs
        self.text: list[int] = []  # prompt and output in the target's cache
        self.made, self.forced, self.closed = 0, 0, 0
        self.seconds, self.removed_nats = 0.0, 0.0
        self._automaton = automaton
        self._at: Path = ()  # the tokens that the automaton has read
        self._masks: dict[Path, Tensor | None] = {}
        self._closing = None if budget is None else Closing(automaton, self._move, budget)

    def mask(self, output: Path) -> Tensor | None:
        """Return [V] bool, the tokens allowed after `output`; None: it is no text, or ends one."""
        if output not in self._masks:
            began = time.perf_counter()
            self._masks[output] = self._make(output)
            self.seconds += time.perf_counter() - began
        return self._masks[output]

    def only(self, output: Path) -> int | None:
        """Return the one token that may follow `output`; None: there are several, or none."""
        mask = self.mask(output)
        return int(mask.int().argmax()) if mask is not None and is_forced(mask) else None

    def forget(self, length: int) -> None:
        """Drop the masks of outputs shorter than `length`: the text has passed them."""
        self._masks = {path: mask for path, mask in self._masks.items() if len(path) >= length}

    def shorten(self, budget: int) -> None:
        """Lower the budget to what a context has room for."""
        if self._closing is not None:
            self._closing.budget = min(self._closing.budget, budget)

    def closes(self, output: Path) -> bool:
        """Return whether the token after `output` is forced so that the text ends in time."""
        return self._closing is not None and self._closing.token(output) is not None

    def _make(self, output: Path) -> Tensor | None:
        if not self.eos.isdisjoint(output) or not self._move(output):
            return None
        self.made += 1
        mask = self._automaton.allowed()
        if not bool(mask.any()):
            return None
        token = None if self._closing is None else self._closing.token(output)
        if token is not None:
            mask = torch.zeros_like(mask)
            mask[list(self.eos) if token == END else token] = True
        return mask

    def _move(self, output: Path) -> bool:
        """Bring the automaton to the state after `output`; false: there is none."""
        same = common_prefix(self._at, output)
        self._automaton.back(len(self._at) - same)
        self._at = output[:same]
        for token in output[same:]:
            if not self._automaton.advance(token):
                return False
            self._at += (token,)
        return True


def is_forced(mask: Tensor) -> bool:
    """Return whether a mask [V] allows one token only."""
    return int(mask.sum()) == 1


class MaskedLM:
    """An `LM` whose logits are -inf for tokens that a constraint does not allow.

    It is the outermost wrapper of a session. A row behind a refused token is never reached: it
    keeps its logits, less EOS, so that its law stays finite. Behind a dead end of the grammar it
    may be: then the commit of the round raises, before any of its tokens is shown.

    Args:
        target: the session is the target's: what it commits is the text.
    """

    def __init__(self, lm: LM, constraint: Constraint, *, target: bool = False) -> None:
        self.vocab_size, self.limit = lm.vocab_size, lm.limit
        self.constraint = constraint
        self._lm, self._target = lm, target
        self._tokens: list[int] = []  # in the cache
        self._nodes: list[Path] = []  # path to each node of a tree after them
        self._start = 0  # length of the cache before the last pass
        self._rows: list[Tensor | None] = []  # the masks of that pass
        self._nats: list[float] = []  # -log Z of its rows
        self._paths_of_rows: list[Path] = []
        if target and lm.limit is not None:
            constraint.shorten(lm.limit - constraint.start)

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return self._lm.length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed tokens and mask the logits after them, each row by its own path."""
        self._follow(self._lm.length - len(self._nodes))
        start = len(self._tokens)
        scores = self._lm.append(tokens, keep, parents)  # a device runs on while masks are made
        paths = self._paths(tokens.tolist(), parents)
        self._note_text()
        if keep == 0 or not paths:
            return scores
        paths = paths[len(paths) - keep :]
        rows = [self.constraint.mask(path) for path in paths]
        if self._target:
            self._start, self._rows, self._paths_of_rows = start, rows, paths
        logits = self._masked(scores.logits, rows)
        if self._target and self.constraint.weighs:
            mass = logits.double().logsumexp(-1) - scores.logits.double().logsumexp(-1)
            self._nats = (-mass).clamp(min=0.0).tolist()
        return scores._replace(logits=logits)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Commit as the session does."""
        if self._target and self._rows:
            self._count(length, path)
        self._lm.commit(length, path)
        if path and self._nodes:
            self._tokens[length:] = self._nodes[path[-1]]
        else:
            del self._tokens[length + len(path or ()) :]
        self._nodes = []
        self._follow(self._lm.length)
        self._note_text()

    def _paths(self, tokens: list[int], parents: Tensor | None) -> list[Path]:
        """Add fed tokens to the cache, and return the output that ends with each."""
        constraint = self.constraint
        nodes = 0 if parents is None else min(len(parents), len(tokens))
        chain = tokens[: len(tokens) - nodes]
        first = len(self._tokens)
        self._tokens += chain
        output = tuple(self._tokens[constraint.start :])
        ends = range(first + 1 - constraint.start, first + 1 - constraint.start + len(chain))
        paths = [output[: max(0, end)] for end in ends]
        if parents is None:
            return paths
        before = len(self._nodes)
        for token, parent in zip(tokens[len(chain) :], parents.tolist()[before:], strict=True):
            self._nodes.append((*(() if parent < 0 else self._nodes[parent]), token))
        return paths + [output + path for path in self._nodes[before:]]

    def _masked(self, logits: Tensor, rows: Sequence[Tensor | None]) -> Tensor:
        """Return [n, V] logits with -inf where the row's mask refuses a token."""
        going = torch.ones(self.vocab_size, dtype=torch.bool)
        going[list(self.constraint.eos)] = False
        allowed = torch.stack([going if row is None else row for row in rows])
        return logits.masked_fill(~send(allowed, logits.device), -torch.inf)

    def _count(self, length: int, path: Sequence[int] | None) -> None:
        """Count the tokens that a round emits: each is of the row of the token before it."""
        used = range(length - self._start) if path is None else (0, *(node + 1 for node in path))
        for place, index in enumerate(used, self._start + 1):
            row = self._rows[index]
            if row is None:
                raise DeadEndError(
                    f"the grammar allows no token after {place - self.constraint.start} tokens of "
                    f"output (position {place}): expected one, or the end of the text. Change the "
                    "schema or the grammar"
                )
            self.constraint.forced += is_forced(row)
            self.constraint.closed += self.constraint.closes(self._paths_of_rows[index])
            self.constraint.removed_nats += self._nats[index] if self._nats else 0.0
        self._rows = []

    def _follow(self, length: int) -> None:
        """Take over from the target's text what the session copied from the target's cache."""
        if len(self._tokens) < length:
            self._tokens += self.constraint.text[len(self._tokens) : length]

    def _note_text(self) -> None:
        """Keep the target's text, and drop the masks that it has passed."""
        if self._target:
            self.constraint.text = self._tokens
            self.constraint.forget(len(self._tokens) - self.constraint.start)
