"""Temperature 0: every text equals the target's own up to rounding ties.

See docs/design.md, invariant 9.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.audit.statistical.examine import Text
from spsbench.audit.statistical.forward import Scorer
from spsbench.engines.eager import EagerLM
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell


class Divergence(NamedTuple):
    """The first position where two greedy texts differ."""

    position: int  # index in the output
    tokens: tuple[int, int]  # auto-regressive, speculative
    gap: float  # between the two tokens' reference logits
    tolerance: float  # twice the measured difference of the two ways to score
    kind: Literal["tie", "bug"]


def first_divergence(
    model: PreTrainedModel,
    prompt: Sequence[int],
    ars: Sequence[int],
    sps: Sequence[int],
    k: int,
) -> Divergence | None:
    """Compare two greedy outputs of `model`; None if one is a prefix of the other.

    The reference is a cacheless pass in float32, for which a model in half precision is copied.
    """
    pairs = enumerate(zip(ars, sps, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    if at is None:
        return None
    text = torch.tensor([*prompt, *ars[:at]])
    reference = last_logits(reference_of(model), text)
    step, block = by_steps(model, text), by_block(model, text, k)
    epsilon = max(float((reference - other).abs().max()) for other in (step, block))
    a, b = ars[at], sps[at]
    gap = abs(float(reference[a] - reference[b]))
    in_top_two = {a, b} == set(reference.topk(2).indices.tolist())
    kind: Literal["tie", "bug"] = "tie" if in_top_two and gap <= 2 * epsilon else "bug"
    return Divergence(at, (a, b), gap, 2 * epsilon, kind)


def reference_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return `model`, or a float32 copy of one in lower precision."""
    precise = model.dtype in (torch.float32, torch.float64)
    return model if precise else copy.deepcopy(model).float()


@torch.inference_mode()
def last_logits(model: PreTrainedModel, text: Tensor) -> Tensor:
    """Return [V] logits after `text` without a cache."""
    out = model(input_ids=text[None].to(model.device), use_cache=False, logits_to_keep=1)
    return out.logits[0, -1].float()  # type: ignore[no-any-return]


def by_steps(model: PreTrainedModel, text: Tensor) -> Tensor:
    """Return [V] logits after `text`, its last token fed alone."""
    lm = EagerLM(model)
    lm.append(text[:-1], keep=0)
    return lm.append(text[-1:], keep=1).logits[0].float()


def by_block(model: PreTrainedModel, text: Tensor, k: int) -> Tensor:
    """Return [V] logits after `text`, its last token fed in a block of k + 1."""
    lm = EagerLM(model)
    lm.append(text[: -k - 1], keep=0)
    return lm.append(text[-k - 1 :], keep=1).logits[0].float()


class GreedyKind(StrEnum):
    """Outcome of a prompt."""

    IDENTICAL = "identical"
    TIE = "tie"
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of one prompt under two greedy methods."""

    name: str
    kind: GreedyKind
    divergence: Divergence | None = None
    logits: tuple[float, float] | None = None  # of the reference, for the two tokens


@dataclass(slots=True)
class Greedy:
    """Comparisons of all prompts, and the controls."""

    compared: list[Compared] = field(default_factory=list)
    repeated: bool = True  # ArS gives the same text twice
    planted: bool = True  # the planted wrong token was classified as a bug
    seconds: float = 0.0

    @property
    def counts(self) -> Counter[GreedyKind]:
        """Return the number of prompts of each kind."""
        return Counter(each.kind for each in self.compared)

    @property
    def verdict(self) -> AuditVerdict:
        """Return the verdict: any bug is a bias."""
        if self.counts[GreedyKind.BUG]:
            return AuditVerdict.BIAS
        valid = self.repeated and self.planted and self.compared
        return AuditVerdict.HELD if valid else AuditVerdict.NOT_VALID

    @property
    def line(self) -> str:
        """Return the result in a line."""
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in GreedyKind)
        start = {AuditVerdict.BIAS: "BUG FOUND: ", AuditVerdict.NOT_VALID: "not valid: "}
        controls = "" if self.repeated else "; ArS differs from itself"
        controls += "" if self.planted else "; a planted wrong token was not called a bug"
        return f"{start.get(self.verdict, '')}{counts}{controls} ({self.seconds:.0f} s)"


def compare(
    loaded: Loaded, prompt: Sequence[int], ars: Sequence[int], sps: Sequence[int], k: int, name: str
) -> Compared:
    """Compare two greedy texts of one prompt."""
    if list(ars) == list(sps):
        return Compared(name, GreedyKind.IDENTICAL)
    found = first_divergence(loaded.target, prompt, ars, sps, k)
    if found is None:  # one text ends before the other
        return Compared(name, GreedyKind.BUG)
    scorer = Scorer(loaded.target, loaded.vocab_size, own=False)
    row = scorer.logits(prompt, [*ars[: found.position], found.tokens[0]])[-1]
    logits = float(row[found.tokens[0]]), float(row[found.tokens[1]])
    return Compared(name, GreedyKind(found.kind), found, logits)


def wrong_token(
    loaded: Loaded, prompt: Sequence[int], tokens: Sequence[int], k: int
) -> Compared | None:
    """Return the control: a text with the target's third choice in it, which must be a bug."""
    if not tokens:
        return None
    at = len(tokens) // 2
    scorer = Scorer(loaded.target, loaded.vocab_size, own=False)
    row = torch.from_numpy(scorer.logits(prompt, tokens[: at + 1])[-1])
    third = int(row.topk(min(3, len(row))).indices[-1])
    planted = [*tokens[:at], third, *tokens[at + 1 :]]
    return compare(loaded, prompt, tokens, planted, k, "planted")


def greedy_records(cell: Cell, loaded: Loaded, texts: Sequence[Text]) -> Greedy:
    """Compare records of a greedy run with the scorer's argmax, given each token's prefix."""
    scorer = Scorer(loaded.target, loaded.vocab_size)
    result = Greedy()
    for text in texts:
        rows = scorer.logits(text.prompt, text.tokens)
        best = rows.argmax(-1).tolist()
        own = list(text.tokens[: len(best)])
        at = next((i for i, (a, b) in enumerate(zip(best, own, strict=True)) if a != b), None)
        drafted = max(text.drafted, default=0)
        if at is None:
            result.compared.append(Compared(text.name, GreedyKind.IDENTICAL))
            continue
        reference = [*own[:at], best[at]]
        result.compared.append(
            compare(loaded, text.prompt, reference, own[: at + 1], drafted, text.name)
        )
    if texts:
        first = texts[0]
        found = wrong_token(loaded, first.prompt, first.tokens, max(first.drafted, default=0))
        result.planted = found is None or found.kind is GreedyKind.BUG
    return result


def of_greedy(found: Greedy) -> dict[str, Any]:
    """Return the rows of a greedy audit."""
    return {
        "verdict": found.verdict.value,
        "line": found.line,
        "counts": {kind.value: count for kind, count in found.counts.items()},
        "controls": {"ars_repeats": found.repeated, "planted_bug_caught": found.planted},
        "prompts": [
            {
                "name": each.name,
                "kind": each.kind.value,
                "divergence": each.divergence._asdict() if each.divergence else None,
                "logits": each.logits,
            }
            for each in found.compared
        ],
        "seconds": found.seconds,
    }
