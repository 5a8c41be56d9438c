"""Evidence from texts: rescored laws, tokens sorted into sets, impossible tokens."""

import zlib
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.random import Generator
from transformers import PreTrainedModel

from spsbench.audit.statistical.audit import Impossible
from spsbench.audit.statistical.betting import (
    ARGMAX,
    DIRECTIONS,
    DRAFT,
    EOS,
    NO_BAND,
    REPEATS,
    TAIL,
    TOP,
    Bits,
    Evidence,
    Floats,
    Whole,
    lengths,
    places,
)
from spsbench.audit.statistical.forward import PRECISE, Scorer, plain
from spsbench.audit.warping import Laws, laws_of
from spsbench.loop.types import Context, Drafter, Noise, Purpose, Scores
from spsbench.settings.cell import WarpSettings


@dataclass(frozen=True, slots=True)
class Text:
    """A generation in the form that the audit reads."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    emitted: tuple[int, ...]  # tokens of each round
    drafted: tuple[int, ...]  # drafted tokens of each round
    name: str = ""

    @property
    def starts(self) -> list[int]:
        """Return the output position at which each round began."""
        return [int(at) for at in np.cumsum([0, *self.emitted[:-1]])] if self.emitted else []


Pull = Callable[[int, Floats], Floats]
"""Function (first position, [n, V] the target's laws q from there) -> [n, V] suspect's laws p."""


class Suspect(Protocol):
    """Law towards which a faulty method would shift the text; a function of the prefix only."""

    def on(self, text: Text) -> Pull:
        """Return the suspected law at the tokens of `text`."""


@dataclass(frozen=True)
class DraftLaw:
    """Suspect: the draft model's law under the same warp."""

    scorer: Scorer
    warp: WarpSettings

    def on(self, text: Text) -> Pull:
        """Return the draft's law; beyond the draft's context the law is q itself."""
        logits = self.scorer.logits(text.prompt, text.tokens)

        def laws(first: int, q: Floats) -> Floats:
            p, draft_logits = q.copy(), logits[first : first + len(q)]
            if len(draft_logits):
                p[: len(draft_logits)] = laws_of(draft_logits, self.warp).law
            return p

        return laws


@dataclass(frozen=True)
class Likeliest:
    """Suspect: the target's argmax."""

    def on(self, text: Text) -> Pull:
        """Return one-hot laws."""
        return lambda first, q: one_hot(q.argmax(-1), q)


@dataclass(frozen=True)
class Proposal:
    """Suspect: the token that a drafter by rule proposes, replayed by round; else the argmax."""

    make: Callable[[], Drafter]

    def on(self, text: Text) -> Pull:
        """Return one-hot laws."""
        proposals = dict(self._replayed(text))

        def laws(first: int, q: Floats) -> Floats:
            likeliest = q.argmax(-1)
            proposed = [proposals.get(first + i, token) for i, token in enumerate(likeliest)]
            return one_hot(np.array(proposed, np.int64), q)

        return laws

    def _replayed(self, text: Text) -> list[tuple[int, int]]:
        """Return output positions and proposed tokens, while the draft was accepted."""
        drafter, proposals = self.make(), []
        drafter.begin(text.prompt, Scores(torch.empty(0, 0), {}))
        for start, count, k in zip(text.starts, text.emitted, text.drafted, strict=True):
            x = [*text.prompt, *text.tokens[:start]]
            draft = drafter.draft(Context(x, _unwarped, None), k, _Silent(), _always)
            if draft.parents is not None:
                return []
            tokens = draft.tokens.tolist()
            for i in range(min(count, len(tokens))):
                proposals.append((start + i, tokens[i]))
                if text.tokens[start + i] != tokens[i]:
                    break
        return proposals


def one_hot(tokens: Whole, like: Floats) -> Floats:
    """Return [n, V] laws with all mass on one token a row."""
    rows = np.zeros_like(like)
    rows[np.arange(len(tokens)), tokens] = 1.0
    return rows


class _Silent(Noise):
    """Noise that raises: a drafter by rule that draws at random cannot be replayed."""

    def uniform(self, purpose: Purpose, n: int) -> torch.Tensor:
        raise LookupError(f"a drafter by rule asked for noise ({purpose.name})")


def _unwarped(logits: torch.Tensor) -> torch.Tensor:
    return logits


def _always(law: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=torch.bool)


ROWS = 64  # scored laws held at a time, for large vocabularies
SHOWN = 8  # context tokens shown with an impossible token
EDGE = 1e-3  # logits or mass beyond the support that float32 rounding explains


@dataclass(frozen=True, slots=True)
class Examiner:
    """Examination settings of one configuration.

    `edge` is the tolerance at the boundary of the support, which rounding moves.
    """

    scorer: Scorer
    suspect: Suspect
    warp: WarpSettings
    eos: Set[int]
    budget: int | None = None  # tokens of a text at most
    ends: bool = True  # an EOS ends the text
    edge: float = EDGE
    seed: int = 0

    def examine(self, text: Text) -> tuple[Evidence, list[Impossible]]:
        """Return the evidence of each token, and the tokens that are impossible."""
        logits = self.scorer.logits(text.prompt, text.tokens)
        pull = self.suspect.on(text)
        tokens = np.array(text.tokens, np.int64)
        impossible = self._beyond_the_end(text)
        rng = np.random.default_rng([self.seed, zlib.crc32(tokens.tobytes()), len(text.prompt)])
        parts: list[Evidence] = []
        for first in range(0, len(logits), ROWS):
            laws = self.laws(logits[first : first + ROWS])
            p = pull(first, laws.law)
            piece = tokens[first : first + len(p)]
            parts.append(self._evidence(text, first, piece, laws.law, p, rng))
            impossible += self._impossible(text, first, piece, laws)
        return Evidence.joined(parts), impossible

    def laws(self, logits: Floats) -> Laws:
        """Return the target's laws at some positions."""
        return laws_of(logits, self.warp)

    def _evidence(
        self, text: Text, first: int, tokens: Whole, q: Floats, p: Floats, rng: Generator
    ) -> Evidence:
        sets = self.sets(q, p)  # [n, D, V]
        drawn, favoured = draws(q, sets, rng)
        here = slice(first, first + len(tokens))
        return Evidence(
            hit=sets[np.arange(len(tokens)), :, tokens],
            mass=masses(q, sets),
            pull=((p - q) * sets[:, DRAFT]).sum(-1),
            index=places(text.emitted)[here],
            length=lengths(here.stop)[here],
            drawn=drawn,
            favoured=favoured,
            live=np.ones((len(tokens), len(DIRECTIONS), 2), np.bool_),
        )

    def sets(self, q: Floats, p: Floats) -> Bits:
        """Return [n, D, V] the tokens of each direction."""
        n, size = q.shape
        sets = np.zeros((n, len(DIRECTIONS), size), np.bool_)
        rows = np.arange(n)
        sets[:, DRAFT] = p > q
        sets[rows, ARGMAX, q.argmax(-1)] = True
        sets[:, EOS, [token for token in self.eos if token < size]] = True
        if size > TOP:
            least = np.partition(q, size - TOP, axis=-1)[:, size - TOP]
            sets[:, TAIL] = q < least[:, None]
        return sets

    def _impossible(self, text: Text, first: int, tokens: Whole, laws: Laws) -> list[Impossible]:
        beyond = laws.outside(tokens)
        impossible = []
        for row in np.flatnonzero(beyond > self.edge).tolist():
            at = first + row
            before = [*text.prompt, *text.tokens[:at]][-SHOWN:]
            reason = f"outside the target's support by {beyond[row]:.3g}"
            impossible.append(Impossible(text.name, at, int(tokens[row]), tuple(before), reason))
        return impossible

    def _beyond_the_end(self, text: Text) -> list[Impossible]:
        """Return the first token after an EOS, or beyond the budget."""
        ended = [i for i, token in enumerate(text.tokens) if self.ends and token in self.eos]
        ends = [(at + 1, "after the text had ended") for at in ended[:1]]
        ends += [(self.budget, "beyond the budget")] if self.budget is not None else []
        return [
            Impossible(text.name, at, text.tokens[at], text.tokens[:at][-SHOWN:], reason)
            for at, reason in ends
            if at < len(text.tokens)
        ]


def masses(q: Floats, sets: Bits) -> Floats:
    """Return [n, D] the q-mass of each set."""
    return np.stack([(q * sets[:, d]).sum(-1) for d in range(sets.shape[1])], axis=1).clip(0, 1)


def draws(q: Floats, sets: Bits, rng: Generator) -> tuple[Bits, Bits]:
    """Return [R, n, D] the sets of seeded draws from q, and from q within the draft's set."""
    n = len(q)
    rows = np.arange(n)
    inside = q * sets[:, DRAFT]
    sets_of_draws = []
    for law in (q, np.where(inside.sum(-1, keepdims=True) > 0, inside, q)):
        cdf = law.cumsum(-1)
        points = rng.random((n, REPEATS)) * cdf[:, -1:]
        tokens = np.stack(
            [np.searchsorted(row, at, side="right") for row, at in zip(cdf, points, strict=True)]
        ).clip(max=q.shape[1] - 1)
        sets_of_draws.append(np.stack([sets[rows, :, tokens[:, r]] for r in range(REPEATS)]))
    return sets_of_draws[0], sets_of_draws[1]


class Rounding(NamedTuple):
    """Bounds on the effect of rounding in a run of lower precision.

    Such a run follows a law that differs from the float32 law at every token. Its audit tests
    |bias| <= band instead of bias = 0: the band is the mean shift of each set's probability between
    the run's precision and float32.
    """

    band: Floats  # [D] on the mean over tokens of a set's probability
    edge: float  # in logits, or in mass at the boundary of a nucleus


def no_rounding() -> Rounding:
    """Return the rounding bounds of float32."""
    return Rounding(NO_BAND, EDGE)


def rounding(model: PreTrainedModel, examiner: Examiner, texts: list[Text]) -> Rounding:
    """Compare `model` in its own precision with the scorer on `texts`; no band in float32."""
    if model.dtype in PRECISE:
        return no_rounding()
    shifts, gap = [], EDGE
    for text in texts:
        wide = examiner.scorer.logits(text.prompt, text.tokens)
        if not len(wide):
            continue
        whole = [*text.prompt, *text.tokens[: len(wide) - 1]]
        narrow = plain(model, whole, len(wide))[:, : wide.shape[1]].numpy()
        gap = max(gap, 2 * float(np.abs(narrow - wide).max()) / examiner.warp.temperature)
        q = examiner.laws(wide).law
        sets = examiner.sets(q, examiner.suspect.on(text)(0, q))
        shifts.append(np.abs(masses(examiner.laws(narrow).law, sets) - masses(q, sets)))
    if not shifts:
        return no_rounding()
    moved = np.concatenate(shifts)
    error = moved.std(0) / np.sqrt(len(moved))
    return Rounding(moved.mean(0) + 3 * error, gap)
