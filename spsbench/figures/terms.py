"""The same counts under other projects' names and formulas; their definitions differ, ours do not.

Read from the projects' sources. Differences to keep in mind when setting figures side by side: the
engines sample one token in the prefill, which no round of ours contains; they count accepted tokens
before the stop check, as our rounds do; and vLLM leaves rounds without a draft out where its
scheduler plans none (V1 runner, synchronous) but counts K proposed tokens for them elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spsbench.figures.rates import ratio
from spsbench.settings.records import RoundRecord


@dataclass(frozen=True, slots=True)
class Counts:
    """What every definition starts from, over one generation or several pooled."""

    k: int  # most tokens drafted a round: num_speculative_tokens
    generations: int
    tokens: int  # emitted
    rounds: int  # target passes after the prefill
    drafting_rounds: int  # those with a draft
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]  # rounds that kept the token at position 1, 2, ... K
    mean_length_sum: float  # sum over generations of tokens per round


def counts(generations: Iterable[Sequence[RoundRecord]], k: int) -> Counts:
    """The counts of generations whose rounds drafted at most `k` tokens."""
    kept = [list(rounds) for rounds in generations if rounds]
    every = [r for rounds in kept for r in rounds]
    return Counts(
        k=k,
        generations=len(kept),
        tokens=sum(r.emitted for r in every),
        rounds=len(every),
        drafting_rounds=sum(r.drafted > 0 for r in every),
        drafted=sum(r.drafted for r in every),
        accepted=sum(r.accepted for r in every),
        accepted_at=tuple(sum(r.accepted > i for r in every) for i in range(k)),
        mean_length_sum=sum(sum(r.emitted for r in rounds) / len(rounds) for rounds in kept),
    )


def vllm(c: Counts) -> dict[str, float | None]:
    """V1 runner, synchronous (v1/spec_decode/metrics.py).

    Per-position rates are unconditional: their denominator is every drafting round, also those
    whose draft was shorter or had been rejected before.
    """
    accepted = ratio(c.accepted, c.drafting_rounds)
    return {
        "mean acceptance length": None if accepted is None else 1 + accepted,
        "draft acceptance rate": ratio(c.accepted, c.drafted),
        **{
            f"per-position acceptance rate {i}": ratio(n, c.drafting_rounds)
            for i, n in enumerate(c.accepted_at)
        },
    }


def vllm_async(c: Counts) -> dict[str, float | None]:
    """V2 runner or asynchronous scheduling: every round counts as a draft of K tokens."""
    accepted = ratio(c.accepted, c.rounds)
    return {
        "mean acceptance length": None if accepted is None else 1 + accepted,
        "draft acceptance rate": ratio(c.accepted, c.k * c.rounds),
        **{
            f"per-position acceptance rate {i}": ratio(n, c.rounds)
            for i, n in enumerate(c.accepted_at)
        },
    }


def sglang(c: Counts) -> dict[str, float | None]:
    """`meta_info` of a request; `num_draft_tokens` is K + 1 there, hence its `- 1`."""
    return {
        "spec_accept_length": ratio(c.tokens, c.rounds),
        "spec_accept_rate": ratio(c.accepted, c.k * c.rounds),
    }


def tensorrt_llm(c: Counts) -> dict[str, float | None]:
    """`trtllm-bench` (bench/dataclasses/reporting.py).

    It infers what was accepted from lengths, and takes every draft to have K tokens. Its iterations
    after the prefill are our rounds, so its `decode_iteration + 1`, which pays for the prefill's
    token, is their number here.
    """
    return {
        "acceptance_length": ratio(c.tokens, c.rounds),
        "acceptance_rate": ratio(c.tokens - c.rounds, c.k * c.rounds),
    }


def transformers(c: Counts) -> dict[str, float | None]:
    """Assisted generation: `n_matches`, the accepted tokens of a round, without the target's."""
    return {"n_matches": ratio(c.accepted, c.rounds)}


def llama_cpp(c: Counts) -> dict[str, float | None]:
    """`timings` of llama-server: totals, no rates."""
    return {"draft_n": float(c.drafted), "draft_n_accepted": float(c.accepted)}


def spec_bench(c: Counts) -> dict[str, float | None]:
    """Pooled over a category: tokens of each target pass, the target's own included."""
    return {"#mean accepted tokens": ratio(c.tokens, c.rounds)}


def spec_forge(c: Counts) -> dict[str, float | None]:
    """The unweighted mean over requests; against the pooled one it can turn a comparison round."""
    return {"average acceptance length": ratio(c.mean_length_sum, c.generations)}


TERMS = {
    "vLLM": vllm,
    "vLLM (asynchronous or V2)": vllm_async,
    "SGLang": sglang,
    "TensorRT-LLM": tensorrt_llm,
    "transformers": transformers,
    "llama.cpp": llama_cpp,
    "Spec-Bench": spec_bench,
    "SpecForge": spec_forge,
}
"""Project -> its figures of the same counts."""
