"""Temperature 0: every text equals the target's own up to rounding ties.

See docs/design.md, invariant 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.audit.statistical.comparison import (
    Compared,
    GreedyKind,
    GreedyResult,
    kind_of,
    with_wrong_token,
)
from spsbench.audit.statistical.examine import Text
from spsbench.audit.statistical.forward import PRECISE, Scorer, precise, stock
from spsbench.engines.eager import Eager
from spsbench.engines.session.states import keeps_states, one_by_one
from spsbench.loop.types import LM
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell

PAIR_KINDS = (GreedyKind.IDENTICAL, GreedyKind.TIE, GreedyKind.BUG)


class Divergence(NamedTuple):
    """The first position where two greedy texts differ."""

    position: int  # index in the output
    tokens: tuple[int, int]  # auto-regressive, speculative
    gap: float  # between the two tokens' reference logits
    tolerance: float  # twice the measured difference of the two ways to score
    kind: GreedyKind  # a tie or a bug


def first_divergence(
    model: PreTrainedModel,
    prompt: Sequence[int],
    ars: Sequence[int],
    sps: Sequence[int],
    k: int,
) -> Divergence | None:
    """Compare two greedy outputs of `model`; None if one is a prefix of the other.

    The reference is a cacheless pass in float32; a model that keeps states is fed one by one.
    """
    pairs = enumerate(zip(ars, sps, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    if at is None:
        return None
    text = torch.tensor([*prompt, *ars[:at]])
    first = len(prompt) - 1
    referee = model if model.dtype in PRECISE else stock(model)
    with precise(referee):
        reference = last_logits(referee, text, first)
    step, block = by_steps(model, text, first), by_block(model, text, k, first)
    epsilon = max(float((reference - other).abs().max()) for other in (step, block))
    a, b = ars[at], sps[at]
    gap = abs(float(reference[a] - reference[b]))
    kind = kind_of((a, b), reference.topk(2).indices.tolist(), gap, 2 * epsilon)
    return Divergence(at, (a, b), gap, 2 * epsilon, kind)


@torch.inference_mode()
def last_logits(model: PreTrainedModel, text: Tensor, prefill: int = 0) -> Tensor:
    """Return [V] logits after `text` without a cache, or one by one after `prefill` tokens."""
    if keeps_states(model.config):
        return one_by_one(model, text, 1, prefill)[0].float()
    out = model(input_ids=text[None].to(model.device), use_cache=False, logits_to_keep=1)
    return out.logits[0, -1].float()  # type: ignore[no-any-return]


def by_steps(model: PreTrainedModel, text: Tensor, prefill: int = 0) -> Tensor:
    """Return [V] logits after `text`, its last token fed alone."""
    lm = begun(model, text[:-1], prefill)
    return lm.append(text[-1:], keep=1).logits[0].float()


def by_block(model: PreTrainedModel, text: Tensor, k: int, prefill: int = 0) -> Tensor:
    """Return [V] logits after `text`, its last token fed in a block of k + 1."""
    size = min(k + 1, len(text) - prefill)
    lm = begun(model, text[:-size], prefill)
    return lm.append(text[-size:], keep=1).logits[0].float()


def begun(model: PreTrainedModel, text: Tensor, prefill: int) -> LM:
    """Return a session that has read `text`; with states, only `prefill` tokens as a prefill."""
    lm = Eager().session(model)
    first = prefill if keeps_states(model.config) else len(text)
    lm.append(text[:first], keep=0)
    lm.append(text[first:], keep=len(text[first:]))
    return lm


@dataclass
class Greedy(GreedyResult):
    """Comparisons of a pair's greedy texts with plain sampling (ArS)."""

    reference: str = "ArS"
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """Return the result in a line."""
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in PAIR_KINDS)
        start = {AuditVerdict.BIAS: "BUG FOUND: ", AuditVerdict.NOT_VALID: "not valid: "}
        before = start.get(self.verdict, "")
        return f"{before}{counts}{self.failed_controls} ({self.seconds:.0f} s)"


def compare(
    loaded: Loaded, prompt: Sequence[int], ars: Sequence[int], sps: Sequence[int], k: int, name: str
) -> Compared:
    """Compare two greedy texts of one prompt."""
    if list(ars) == list(sps):
        return Compared(name, GreedyKind.IDENTICAL)
    divergence = first_divergence(loaded.target, prompt, ars, sps, k)
    if divergence is None:  # one text ends before the other
        return Compared(name, GreedyKind.BUG)
    at, tokens, gap, tolerance, kind = divergence
    scorer = Scorer(loaded.target, loaded.vocab_size, reload=False)
    row = scorer.logits(prompt, [*ars[:at], tokens[0]])[-1]
    logits = float(row[tokens[0]]), float(row[tokens[1]])
    return Compared(name, kind, at, tokens, gap, tolerance, logits)


def wrong_token(
    loaded: Loaded, prompt: Sequence[int], tokens: Sequence[int], k: int
) -> Compared | None:
    """Return the control: a text with the target's third choice in it, which must be a bug."""
    if not tokens:
        return None
    at = len(tokens) // 2
    scorer = Scorer(loaded.target, loaded.vocab_size, reload=False)
    row = torch.from_numpy(scorer.logits(prompt, tokens[: at + 1])[-1])
    third = int(row.topk(min(3, len(row))).indices[-1])
    planted = with_wrong_token(tokens, at, third)
    return compare(loaded, prompt, tokens, planted, k, "planted")


def greedy_records(cell: Cell, loaded: Loaded, texts: Sequence[Text]) -> Greedy:
    """Compare records of a greedy run with the scorer's argmax, given each token's prefix."""
    scorer = Scorer(loaded.target, loaded.vocab_size)
    result = Greedy()
    for text in texts:
        rows = scorer.logits(text.prompt, text.tokens)
        best = rows.argmax(-1).tolist()
        tokens = list(text.tokens[: len(best)])
        at = next((i for i, (a, b) in enumerate(zip(best, tokens, strict=True)) if a != b), None)
        drafted = max(text.drafted, default=0)
        if at is None:
            result.compared.append(Compared(text.name, GreedyKind.IDENTICAL))
            continue
        reference = [*tokens[:at], best[at]]
        result.compared.append(
            compare(loaded, text.prompt, reference, tokens[: at + 1], drafted, text.name)
        )
    if texts:
        first = texts[0]
        control = wrong_token(loaded, first.prompt, first.tokens, max(first.drafted, default=0))
        result.planted = control is None or control.kind is GreedyKind.BUG
    return result


def of_greedy(result: Greedy) -> dict[str, Any]:
    """Return the rows of a greedy audit."""
    return {
        "verdict": result.verdict.value,
        "line": result.line,
        "counts": {kind.value: count for kind, count in result.counts.items()},
        "controls": {"ars_repeats": result.repeated, "planted_bug_caught": result.planted},
        "prompts": [
            {
                "name": comparison.name,
                "kind": comparison.kind.value,
                "divergence": _divergence(comparison),
                "logits": comparison.logits,
            }
            for comparison in result.compared
        ],
        "seconds": result.seconds,
    }


def _divergence(comparison: Compared) -> dict[str, Any] | None:
    if comparison.position is None:
        return None
    fields = ("position", "tokens", "gap", "tolerance")
    return {name: getattr(comparison, name) for name in fields} | {"kind": comparison.kind.value}
