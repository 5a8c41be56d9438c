"""Constraints over the tokens of a loaded model, by llguidance.

An `LLTokenizer` takes seconds to make, so it is kept with its tokenizer. A grammar is compiled
once; each generation has a copy, and copies share what they have computed.
"""

from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.constraint import Constraint, Path
from spsbench.loop.sampling import Numbers
from spsbench.messages import announce_if_slow
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.constraint import constraint_kind, import_llguidance, to_llguidance

MAX_GRAMMARS = 256  # compiled grammars that are kept
MAX_END = 256  # tokens of an end that is looked for
CLOSERS = '}]",:.123456789ntf0-/@_'
"""First characters of tokens, those that lead to the end of a JSON text first."""
STRUCTURE = b'{}[]",:'
DEAD_END = "NoExtension"  # the beginning of the error of a state that nothing can follow

_KEPT: WeakKeyDictionary[Any, dict[Any, "GrammarTokens"]] = WeakKeyDictionary()
"""Tokenizer -> size of the vocabulary and EOS ids -> its tokens as llguidance reads them."""


def open_constraint(cell: Cell, loaded: Loaded) -> Constraint | None:
    """Return a new constraint for one generation of a cell over loaded models; None: it has none.

    A JSON text is closed within its budget unless `leave_open`. DataError: llguidance refuses it.
    """
    if (kind := constraint_kind(cell)) is None:
        return None
    tokens = tokens_of(loaded)
    automaton = MatcherAutomaton(tokens.matcher(kind, getattr(cell, kind)), loaded, tokens)
    closes = kind == "json_schema" and not cell.leave_open
    return Constraint(automaton, loaded.eos, weighs=not cell.changed_distribution, closes=closes)


def tokens_of(loaded: Loaded) -> "GrammarTokens":
    """Return a tokenizer's tokens for llguidance, kept with it; DataError: unreadable, no EOS."""
    kept = _KEPT.setdefault(loaded.tokenizer, {})
    key = loaded.vocab_size, loaded.eos
    if key not in kept:
        with announce_if_slow("reading the tokens for the grammar"):
            kept[key] = GrammarTokens(loaded)
    return kept[key]


class GrammarTokens:
    """The tokens of a model as llguidance reads them, with the grammars compiled for them."""

    def __init__(self, loaded: Loaded) -> None:
        tokenizer = loaded.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        name = getattr(tokenizer, "name_or_path", "")
        if backend is None or not hasattr(backend, "to_str"):
            raise DataError(
                f"a constraint with this tokenizer ({name}: {type(tokenizer).__name__}): expected "
                "one of the library tokenizers, with a tokenizer.json. Leave the constraint out"
            )
        if not loaded.eos:
            raise DataError(
                f"a constraint without an end-of-text token ({name}): expected one, with which a "
                "text ends where the grammar allows it. Choose another target"
            )
        size = max(loaded.vocab_size, len(tokenizer))
        try:
            self._tokens: Any = import_llguidance().LLTokenizer(
                backend.to_str(), n_vocab=size, eos_token=sorted(loaded.eos)
            )
        except ValueError as error:
            raise DataError(
                f"a tokenizer that llguidance cannot read ({name}: {error}): expected one of bytes "
                "or characters. Leave the constraint out"
            ) from error
        self._size = loaded.vocab_size
        self._matchers: dict[tuple[str, str], Any] = {}

    def closer(self, mask: Numbers, before: Path) -> int:
        """Return the token allowed by `mask` [V] that leads most likely to the end of a JSON text.

        In a string (where `q` or `Q` is allowed) that is the quote, else a single character;
        elsewhere the first by `_order`. `before` has the tokens of the end so far: those of the
        same string or number are repeated last, since its pattern may ask for another one. Some
        token must be allowed.
        """
        order = self._order.copy()
        letters, quotes = ([token for token in some if mask[token]] for some in self._marks)
        is_string = bool(letters)  # only a string goes on with any letter
        if is_string:
            if quotes:
                return quotes[0]
            order += self._long
        borders = b'"' if is_string else STRUCTURE
        for token in reversed(before):
            if any(letter in borders for letter in self._words[token]):
                break
            order[token] += 128 * len(CLOSERS)
        return int(np.where(mask, order, 1 << 40).argmin())

    @cached_property
    def _words(self) -> list[bytes]:
        return [bytes(self._tokens.decode_bytes([token])) for token in range(self._size)]

    @cached_property
    def _order(self) -> Numbers:
        """Return [V] ranks, lower is sooner: by first character (`CLOSERS`), then by length."""
        place = {ord(letter): at for at, letter in enumerate(CLOSERS)}
        others = len(CLOSERS)
        return np.array(
            [
                64 * (place.get(word[0], others) + others * word[:1].isspace()) + min(len(word), 63)
                if word
                else 128 * others
                for word in self._words
            ]
        )

    @cached_property
    def _long(self) -> Numbers:
        """Return [V], what puts single characters before all other tokens."""
        return np.array([0 if len(word) == 1 else 1 << 30 for word in self._words])

    @cached_property
    def _marks(self) -> tuple[list[int], list[int]]:
        """Return the tokens `q` and `Q`, with which no value of JSON begins, and the quotes."""
        every = [*enumerate(self._words)]
        return [t for t, word in every if word in (b"q", b"Q")], [t for t, w in every if w == b'"']

    def matcher(self, kind: str, text: str) -> Any:
        """Return a grammar's first state for callers to copy; DataError: it cannot be followed.

        It is compiled once, and kept; of more than `MAX_GRAMMARS` the oldest is dropped.
        """
        key = kind, text
        if key not in self._matchers:
            matcher = import_llguidance().LLMatcher(
                self._tokens, to_llguidance(kind, text), log_level=0
            )
            refuse_error(matcher)
            if len(self._matchers) >= MAX_GRAMMARS:
                self._matchers.pop(next(iter(self._matchers)))
            self._matchers[key] = matcher
        return self._matchers[key]


class MatcherAutomaton:
    """`loop.constraint.Automaton` over a matcher of llguidance, which never reads an EOS id.

    After one the matcher would not count it, and take back the token before it.
    """

    def __init__(self, matcher: Any, loaded: Loaded, tokens: GrammarTokens) -> None:
        self._first, self._vocab, self._tokens = matcher, loaded.vocab_size, tokens
        self._eos = sorted(loaded.eos)
        self._matcher = matcher.deep_copy()
        self._read: list[int] = []

    def allowed(self) -> Tensor:
        """Return [V] bool, the tokens that may follow; EOS ids only where the text may end.

        All are False at a dead end of the grammar. DataError: the matcher fails for another reason.
        """
        mask = self._mask(self._matcher)
        if self._matcher.is_error():
            if not str(self._matcher.get_error()).startswith(DEAD_END):
                refuse_error(self._matcher)
            self._restart()
            return torch.zeros(self._vocab, dtype=torch.bool)
        return torch.from_numpy(mask)

    def advance(self, token: int) -> bool:
        """Read a token, no EOS id, and return True; False, in the state before: it cannot follow.

        Which tokens are drawn the mask decides, since `validate_tokens` allows more than it does.
        """
        if int(self._matcher.try_consume_tokens([token])) != 1:
            if self._matcher.is_error():
                self._restart()
            return False
        self._read.append(token)
        return True

    def back(self, tokens: int) -> None:
        """Return to the state before the last tokens, `tokens` in number: read the others again.

        The matcher's `rollback` is not used: after it llguidance 1.9 makes wrong masks: in nested
        objects it allowed tokens that it then refused to read.
        """
        if tokens:
            del self._read[len(self._read) - tokens :]
            self._restart()

    def end(self) -> Path | None:
        """Return a short path after which the text may end, () if it may now; None: not found."""
        matcher = self._matcher.deep_copy()
        tokens: Path = ()
        while len(tokens) < MAX_END:
            if matcher.is_accepting():
                return tokens
            mask = self._mask(matcher)
            if matcher.is_error() or not mask.any():
                return None
            token = self._tokens.closer(mask, tokens)
            if matcher.try_consume_tokens([token]) != 1:
                return None
            tokens += (token,)
        return None

    def _mask(self, matcher: Any) -> Numbers:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)
        if not matcher.is_accepting():
            mask[self._eos] = False  # ids that end a text may be letters of the grammar as well
        return mask

    def _restart(self) -> None:
        """Read the text again, from the first state; DataError: it cannot be read."""
        self._matcher = self._first.deep_copy()
        if self._matcher.try_consume_tokens(self._read) != len(self._read):
            refuse_error(self._matcher)


def refuse_error(matcher: Any) -> None:
    """Raise DataError if a matcher has failed, after which it allows nothing."""
    if matcher.is_error():
        words = " ".join(str(matcher.get_error()).partition("<state>")[0].split())[:300]
        raise DataError(f"the grammar cannot be followed ({words}): expected a simpler one")
