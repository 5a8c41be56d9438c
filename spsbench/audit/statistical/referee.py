"""The referee of texts: the target's distributions from a model scored in float32.

It says what the target would have drawn at each token, which tokens were impossible, and how much
of a difference the rounding of a run may explain.
"""

import zlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from spsbench.audit.statistical.betting import NO_BAND, Evidence, Floats
from spsbench.audit.statistical.finding import Impossible
from spsbench.audit.statistical.forward import PRECISE, Scorer, score_plainly
from spsbench.audit.statistical.positions import (
    Alternative,
    DraftPreferred,
    Followed,
    Likeliest,
    PositionProbs,
    TextPositions,
    distributions_of,
    evidence_of,
    greatest_difference,
    masses,
    of_vocabulary,
    sets_of,
)
from spsbench.loop.drafter_context import Drawn, Weights
from spsbench.methods.processors import processors_of
from spsbench.methods.resolve import plan_of
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell, WarpSettings


@dataclass(frozen=True, slots=True)
class AuditText:
    """A generation in the form that the audit reads."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    emitted: tuple[int, ...]  # tokens of each round
    drafted: tuple[int, ...]  # drafted tokens of each round
    name: str = ""


ROWS = 64  # scored distributions held at a time, for large vocabularies
SHOWN = 8  # context tokens shown with an impossible token
EDGE = 1e-3  # logits or mass beyond the support that float32 rounding explains


@dataclass(frozen=True, slots=True)
class Referee:
    """A target, and its draft of the same vocabulary if there is one, under a warp.

    `edge` is the tolerance at the boundary of the support, which rounding moves.
    """

    scorer: Scorer
    warp: WarpSettings
    eos: Set[int]
    draft: Scorer | None = None
    budget: int | None = None  # tokens of a text at most
    ends: bool = True  # an EOS ends the text
    edge: float = EDGE
    seed: int = 0

    def examine(
        self, text: AuditText, alternatives: Sequence[Alternative]
    ) -> tuple[list[Evidence], list[Impossible]]:
        """Return a text's evidence for each alternative, in order, and its impossible tokens.

        Those are the first after an EOS, the first beyond the budget, and all beyond `edge` outside
        the support; they are evidence too. Evidence ends with the target's context, and its draws
        depend on `seed` and the text alone.
        """
        impossible = self._beyond_the_end(text)
        crc = zlib.crc32(np.array(text.tokens, np.int64).tobytes())
        rng = np.random.default_rng([self.seed, crc, len(text.prompt)])

        def positions() -> Iterator[TextPositions]:
            for first, target, at in self.positions(text):
                impossible.extend(self._outside(text, first, at, target.outside(at.emitted)))
                yield at

        return evidence_of(positions(), alternatives, rng, text.prompt), impossible

    def positions(
        self, text: AuditText, rows: int | None = ROWS
    ) -> Iterator[tuple[int, PositionProbs, TextPositions]]:
        """Yield first index, distributions and positions of `rows` tokens at a time (None: of all).

        The tokens end with the target's context; beyond the draft's context q stands for p.
        """
        logits = self.scorer.logits(text.prompt, text.tokens)
        drafted = None if self.draft is None else self.draft.logits(text.prompt, text.tokens)
        tokens = np.array(text.tokens, np.int64)
        for first in range(0, len(logits), rows or max(1, len(logits))):
            here = slice(first, first + rows if rows else None)
            target, draft = distributions_of(logits[here], self.warp), None
            if drafted is not None:  # beyond the draft's context its distribution is the target's
                draft, draft_logits = target.probs.copy(), drafted[here]
                if len(draft_logits):
                    draft[: len(draft_logits)] = distributions_of(draft_logits, self.warp).probs
            piece = tokens[first : first + len(target.probs)]
            at = of_vocabulary(target.probs, piece, self.eos, text.emitted, first, draft)
            yield first, target, at

    def _outside(
        self, text: AuditText, first: int, at: TextPositions, gap: Floats
    ) -> Iterator[Impossible]:
        """Yield tokens of `at`, from `first` on, whose `gap` [n] to the support is above `edge`."""
        for row in np.flatnonzero(gap > self.edge).tolist():
            before = (*text.prompt, *text.tokens[: first + row])[-SHOWN:]
            reason = f"outside the target's support by {gap[row]:.3g}"
            yield Impossible(text.name, first + row, int(at.emitted[row]), before, reason)

    def _beyond_the_end(self, text: AuditText) -> list[Impossible]:
        """Return the token after the first EOS, and the first beyond the budget: 0, 1 or 2."""
        ended = [i for i, token in enumerate(text.tokens) if self.ends and token in self.eos]
        ends = [(at + 1, "after the text had ended") for at in ended[:1]]
        ends += [(self.budget, "beyond the budget")] if self.budget is not None else []
        return [
            Impossible(
                text.name, at, text.tokens[at], (*text.prompt, *text.tokens[:at])[-SHOWN:], reason
            )
            for at, reason in ends
            if at < len(text.tokens)
        ]


def bound_rounding(
    model: PreTrainedModel,
    referee: Referee,
    alternatives: Sequence[Alternative],
    texts: Sequence[AuditText],
) -> tuple[list[Floats], float]:
    """Return bounds on the effect of rounding on `texts`: a band for each alternative, and an edge.

    The distribution of a run of lower precision differs from that of float32 at every token, so its
    audit tests |bias| <= band instead of bias = 0. A band [D] is the mean shift of each set's
    probability by the model's precision and three standard errors; 0 in float32, or without texts.
    The edge is twice the greatest shift of a scaled logit, `EDGE` at least; it bounds mass too.
    """
    shifts: list[list[Floats]] = [[] for _ in alternatives]
    edge = EDGE
    for text in () if model.dtype in PRECISE else texts:
        wide = referee.scorer.logits(text.prompt, text.tokens)
        if not len(wide):
            continue
        whole = [*text.prompt, *text.tokens[: len(wide) - 1]]
        rows = score_plainly(model, whole, len(wide))
        narrow = referee.scorer.processed(rows, whole, len(text.prompt))
        edge = max(edge, 2 * greatest_difference(narrow, wide) / referee.warp.temperature)
        ((_, target, at),) = referee.positions(text, None)
        moved = distributions_of(narrow, referee.warp).probs
        for shift, alternative in zip(shifts, alternatives, strict=True):
            sets = sets_of(at, alternative.favoured(at, text.prompt)[0])
            shift.append(np.abs(masses(moved, sets) - masses(target.probs, sets)))
    return [mean_and_errors(shift) for shift in shifts], edge


def mean_and_errors(shifts: Sequence[Floats]) -> Floats:
    """Return the mean shift [D] and three standard errors; no band without a shift."""
    if not shifts:
        return NO_BAND
    moved = np.concatenate(shifts)
    return np.asarray(moved.mean(0) + 3 * (moved.std(0) / np.sqrt(len(moved))))


def referee_of(cell: Cell, loaded: Loaded) -> Referee:
    """Return the referee of texts of `cell`, with its draft if that has the same vocabulary.

    Weights are loaded again where memory allows, except those of custom code or random ones.
    """
    reload = not (cell.target.trust_remote_code or cell.random)
    shared = loaded.draft is not None and loaded.draft_tokenizer is None
    over = loaded.vocab_size, processors_of(cell, loaded)
    return Referee(
        Scorer(loaded.target, *over, reload=reload),
        cell.warp,
        frozenset(loaded.eos),
        draft=Scorer(loaded.draft, *over, reload=reload) if shared else None,
        budget=cell.max_new_tokens,
        ends=not cell.ignore_eos,
        seed=cell.seed % 2**32,
    )


def alternatives_of(cell: Cell, loaded: Loaded) -> list[Alternative]:
    """Return the one fault to bet on: a set of tokens towards which a wrong method shifts texts.

    Tokens that a draft model of this vocabulary prefers, a look-up's next token, or the likeliest.
    """
    if loaded.draft is not None and loaded.draft_tokenizer is None:
        return [DraftPreferred()]
    if cell.elsewhere or loaded.vocabularies is not None:
        return [Likeliest()]
    plan = plan_of(cell.drafter)
    by_rule = plan.drawn is Drawn.POINT and plan.weights is Weights.NONE and not plan.target
    return [Followed(Likeliest())] if by_rule else [Likeliest()]
