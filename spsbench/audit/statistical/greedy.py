"""Temperature 0: every text equals the target's own up to rounding ties (design, invariant 9)."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.audit.statistical.comparison import (
    Compared,
    GreedyKind,
    GreedyResult,
    greedy_kind,
    with_wrong_token,
)
from spsbench.audit.statistical.finding import LEADS, AuditVerdict
from spsbench.audit.statistical.forward import Scorer
from spsbench.audit.statistical.positions import greatest_difference
from spsbench.audit.statistical.referee import AuditText
from spsbench.audit.statistical.texts import NamedPrompt, generate_audited, plain_cell
from spsbench.engines.eager import Eager
from spsbench.engines.session.states import keeps_states
from spsbench.methods.processors import processors_of
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell

log = logging.getLogger(__name__)

PAIR_KINDS = (GreedyKind.IDENTICAL, GreedyKind.TIE, GreedyKind.BUG)
REPEATED = 3  # greedy prompts that are generated twice


def compare_greedy(
    scorer: Scorer,
    prompt: Sequence[int],
    ars: Sequence[int],
    sps: Sequence[int],
    k: int,
    name: str = "",
) -> Compared:
    """Compare two greedy texts of one prompt: identical, a tie of the two likeliest tokens, or bug.

    The reference is a cacheless pass in float32; the tolerance is twice the measured difference to
    a step, and to a block of k + 1 tokens, of the scorer's model in its own precision, at the first
    token that differs. A text that ends before the other is a bug, without a position.
    """
    if list(ars) == list(sps):
        return Compared(name, GreedyKind.IDENTICAL)
    at = next((i for i, (a, b) in enumerate(zip(ars, sps, strict=False)) if a != b), None)
    if at is None:  # one text ends before the other
        return Compared(name, GreedyKind.BUG)
    a, b = ars[at], sps[at]
    reference = torch.from_numpy(scorer.logits(prompt, [*ars[:at], a])[-1])
    text, first = torch.tensor([*prompt, *ars[:at]]), len(prompt) - 1
    rows = (after_block(scorer.model, text, size, first) for size in (1, k + 1))
    passes = (scorer.processed(row[None], text.tolist(), len(prompt))[0] for row in rows)
    epsilon = max(greatest_difference(reference.numpy(), row) for row in passes)
    logits = float(reference[a]), float(reference[b])
    gap = abs(logits[0] - logits[1])
    kind = greedy_kind((a, b), reference.topk(2).indices.tolist(), gap, 2 * epsilon)
    return Compared(name, kind, at, (a, b), gap, 2 * epsilon, logits)


def after_block(model: PreTrainedModel, text: Tensor, size: int, prefill: int = 0) -> Tensor:
    """Return [V] logits after `text`, its last `size` tokens fed together, by a session.

    A model with states reads `prefill` tokens at once, and those from there to the block one by
    one. The block never begins before `prefill`.
    """
    size = min(size, len(text) - prefill)
    begun, last = text[:-size], text[-size:]
    lm = Eager().session(model)
    first = prefill if keeps_states(model.config) else len(begun)
    lm.append(begun[:first], keep=0)
    lm.append(begun[first:], keep=len(begun[first:]))
    return lm.append(last, keep=1).logits[0].float().cpu()


@dataclass
class Greedy(GreedyResult):
    """Comparisons of a pair's greedy texts with plain sampling (ArS)."""

    reference: str = "ArS"
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """Return verdict, counts of texts by kind, failed controls and seconds in a line."""
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in PAIR_KINDS)
        lead = "BUG FOUND: " if self.verdict is AuditVerdict.BIAS else LEADS[self.verdict]
        return f"{lead}{counts}{self.failed_controls} ({self.seconds:.0f} s)"

    def to_json(self) -> dict[str, Any]:
        """Return verdict, line, counts, controls and every comparison as plain values."""
        return {
            "verdict": self.verdict.value,
            "line": self.line,
            "counts": {kind.value: count for kind, count in self.counts.items()},
            "controls": {"ars_repeats": self.repeated, "planted_bug_caught": self.planted},
            "prompts": [
                {
                    "name": comparison.name,
                    "kind": comparison.kind.value,
                    "divergence": comparison.divergence,
                    "logits": comparison.logits,
                }
                for comparison in self.compared
            ],
            "seconds": self.seconds,
        }


def catches_wrong_token(
    scorer: Scorer, prompt: Sequence[int], tokens: Sequence[int], k: int
) -> bool:
    """Return whether the target's third choice amid `tokens` is judged a bug; True without any."""
    if not tokens:
        return True
    at = len(tokens) // 2
    row = torch.from_numpy(scorer.logits(prompt, tokens[: at + 1])[-1])
    third = int(row.topk(min(3, len(row))).indices[-1])
    planted = with_wrong_token(tokens, at, third)
    return compare_greedy(scorer, prompt, tokens, planted, k).kind is GreedyKind.BUG


def greedy_pair(cell: Cell, loaded: Loaded, prompts: Sequence[NamedPrompt]) -> Greedy:
    """Generate each prompt by greedy ArS and by `cell`, and compare the two texts; log unlike ones.

    The first `REPEATED` prompts have both controls: ArS once more, and a planted wrong token.
    """
    began = time.perf_counter()
    plain, result, scorer = plain_cell(cell), Greedy(), Scorer.shared(cell, loaded)
    for number, prompt in enumerate(prompts):
        ars = generate_audited(plain, loaded, prompt.ids, prompt.name, 0).tokens
        sps = generate_audited(cell, loaded, prompt.ids, prompt.name, 0)
        k = max(sps.drafted, default=0)
        comparison = compare_greedy(scorer, prompt.ids, ars, sps.tokens, k, prompt.name)
        result.compared.append(comparison)
        if number < REPEATED:
            again = generate_audited(plain, loaded, prompt.ids, prompt.name, 1)
            result.repeated &= again.tokens == ars
            result.planted &= catches_wrong_token(scorer, prompt.ids, ars, k)
        if comparison.kind is not GreedyKind.IDENTICAL:
            log.info(f"{prompt.name}: {comparison.kind.value}")
    result.seconds = time.perf_counter() - began
    return result


def greedy_records(cell: Cell, loaded: Loaded, texts: Sequence[AuditText]) -> Greedy:
    """Compare greedy texts with the scorer's argmaxes, up to the first other token: a tie or a bug.

    Tokens beyond the target's context are left out. One planted in the first text must be a bug.
    """
    began, result, shared = time.perf_counter(), Greedy(), Scorer.shared(cell, loaded)
    scorer = Scorer(loaded.target, loaded.vocab_size, processors_of(cell, loaded))
    for text in texts:
        best = scorer.logits(text.prompt, text.tokens).argmax(-1).tolist()
        tokens, k = text.tokens[: len(best)], max(text.drafted, default=0)
        result.compared.append(compare_greedy(shared, text.prompt, best, tokens, k, text.name))
        if len(result.compared) == 1:
            result.planted = catches_wrong_token(shared, text.prompt, text.tokens, k)
    result.seconds = time.perf_counter() - began
    return result
