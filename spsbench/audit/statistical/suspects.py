"""Suspects: laws p towards which a faulty method would pull the text; functions of the past alone.

With a draft model it is the draft's own law, since nearly every defect of verification leaks some
of it into the output. Where tokens are drafted by rule it is the proposed token. Where neither is
known, the target's likeliest token. Whatever the suspect is, the audit is valid; it only decides
what the audit sees best.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from spsbench.audit.statistical.evidence import Floats, Whole
from spsbench.audit.statistical.forward import Scorer
from spsbench.audit.warping import laws_of
from spsbench.loop.types import Context, Drafter, Noise, Purpose, Scores
from spsbench.settings.cell import WarpSettings


@dataclass(frozen=True, slots=True)
class Text:
    """A generation as the audit reads it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    emitted: tuple[int, ...]  # tokens of each round
    drafted: tuple[int, ...]  # drafted tokens of each round
    name: str = ""

    @property
    def starts(self) -> list[int]:
        """Output position at which each round began."""
        return [int(at) for at in np.cumsum([0, *self.emitted[:-1]])] if self.emitted else []


Pull = Callable[[int, Floats], Floats]
"""(first token, [n, V] the target's laws q from there on) -> [n, V] the suspect's laws p."""


class Suspect(Protocol):
    """Where the text may be pulled to."""

    @property
    def name(self) -> str:
        """In words."""

    def on(self, text: Text) -> Pull:
        """What it says of the tokens of `text`."""


@dataclass(frozen=True)
class DraftLaw:
    """The draft model's law under the same warp."""

    scorer: Scorer
    warp: WarpSettings
    name: str = "the draft's law"

    def on(self, text: Text) -> Pull:
        """Beyond the draft model's context q itself: nothing is suspected there."""
        logits = self.scorer.logits(text.prompt, text.tokens)

        def laws(first: int, q: Floats) -> Floats:
            p, own = q.copy(), logits[first : first + len(q)]
            if len(own):
                p[: len(own)] = laws_of(own, self.warp).law
            return p

        return laws


@dataclass(frozen=True)
class Likeliest:
    """The target's likeliest token."""

    name: str = "the target's likeliest token"

    def on(self, text: Text) -> Pull:
        """One-hot."""
        return lambda first, q: one_hot(q.argmax(-1), q)


@dataclass(frozen=True)
class Proposal:
    """The token that a drafter by rule proposes, replayed round by round; else the likeliest."""

    make: Callable[[], Drafter]
    name: str = "the proposed token"

    def on(self, text: Text) -> Pull:
        """One-hot."""
        known = dict(self._replayed(text))

        def laws(first: int, q: Floats) -> Floats:
            likeliest = q.argmax(-1)
            proposed = [known.get(first + i, token) for i, token in enumerate(likeliest)]
            return one_hot(np.array(proposed, np.int64), q)

        return laws

    def _replayed(self, text: Text) -> list[tuple[int, int]]:
        """Output positions and what was proposed there, as far as the draft was followed."""
        drafter, found = self.make(), []
        drafter.begin(text.prompt, Scores(torch.empty(0, 0), {}))
        for start, count, k in zip(text.starts, text.emitted, text.drafted, strict=True):
            x = [*text.prompt, *text.tokens[:start]]
            draft = drafter.draft(Context(x, _unwarped, None), k, _Silent(), _always)
            if draft.parents is not None:
                return []
            tokens = draft.tokens.tolist()
            for i in range(min(count, len(tokens))):
                found.append((start + i, tokens[i]))
                if text.tokens[start + i] != tokens[i]:
                    break
        return found


def one_hot(tokens: Whole, like: Floats) -> Floats:
    """[n, V] all mass on one token a row."""
    rows = np.zeros_like(like)
    rows[np.arange(len(tokens)), tokens] = 1.0
    return rows


class _Silent(Noise):
    """No randomness: a drafter by rule that asks for some cannot be replayed."""

    def uniform(self, purpose: Purpose, n: int) -> torch.Tensor:
        raise LookupError(f"a drafter by rule asked for noise ({purpose.name})")


def _unwarped(logits: torch.Tensor) -> torch.Tensor:
    return logits


def _always(law: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=torch.bool)
