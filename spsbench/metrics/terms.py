"""Figures under other projects' names and formulas, which differ from this project's.

From the projects' sources. The engines sample one token in the prefill, which no round here
contains; they count accepted tokens before the stop check, as rounds here do; and vLLM omits rounds
without a draft where its scheduler plans none (V1 runner, synchronous) but counts K proposed tokens
for them elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spsbench.metrics.rates import ratio
from spsbench.settings.records import RoundRecord

Figures = dict[str, float | None]
"""Figures by the project's name; an int if a count; None = no denominator."""


@dataclass(slots=True)
class Counts:
    """The counts behind every definition, over one generation or several pooled."""

    k: int  # most tokens drafted a round: num_speculative_tokens
    accepted_at: list[int]  # rounds that kept the token at position 1, 2, ... K
    generations: int = 0
    tokens: int = 0  # emitted
    rounds: int = 0  # target passes after the prefill
    drafting_rounds: int = 0  # rounds with a draft
    drafted: int = 0
    accepted: int = 0
    mean_length_sum: float = 0.0  # sum over generations of tokens per round

    def add(self, rounds: Sequence[RoundRecord]) -> None:
        """Count one generation; generations without rounds are ignored. A deeper draft raises K."""
        if not rounds or any(r.passes != 1 or r.drafted < 0 for r in rounds):  # not all told
            return
        self.k = max(self.k, *(r.depth for r in rounds))
        self.accepted_at += [0] * (self.k - len(self.accepted_at))
        for r in rounds:
            for i in range(r.accepted):
                self.accepted_at[i] += 1
        tokens = sum(r.emitted for r in rounds)
        self.generations += 1
        self.tokens += tokens
        self.rounds += len(rounds)
        self.drafting_rounds += sum(r.drafted > 0 for r in rounds)
        self.drafted += sum(r.drafted for r in rounds)
        self.accepted += sum(r.accepted for r in rounds)
        self.mean_length_sum += tokens / len(rounds)


def counts(generations: Iterable[Sequence[RoundRecord]], k: int) -> Counts:
    """Return the counts of generations whose rounds drafted at most `k` tokens."""
    made = Counts(k, [0] * k)
    for rounds in generations:
        made.add(rounds)
    return made


def vllm(c: Counts) -> Figures:
    """Return the figures of vLLM's V1 runner, synchronous (v1/spec_decode/metrics.py).

    Per-position rates are unconditional: their denominator is every drafting round, also those
    whose draft was shorter or rejected earlier.
    """
    accepted = ratio(c.accepted, c.drafting_rounds)
    return {
        "num_drafts": c.drafting_rounds,
        "num_draft_tokens": c.drafted,
        "num_accepted_tokens": c.accepted,
        "mean acceptance length": None if accepted is None else 1 + accepted,
        "draft acceptance rate": ratio(c.accepted, c.drafted),
        **{
            f"per-position acceptance rate {i}": ratio(n, c.drafting_rounds)
            for i, n in enumerate(c.accepted_at)
        },
    }


def vllm_async(c: Counts) -> Figures:
    """Return the figures of vLLM's V2 runner or asynchronous scheduling.

    Every round counts as a draft of K tokens.
    """
    accepted = ratio(c.accepted, c.rounds)
    return {
        "num_drafts": c.rounds,
        "num_draft_tokens": c.k * c.rounds,
        "num_accepted_tokens": c.accepted,
        "mean acceptance length": None if accepted is None else 1 + accepted,
        "draft acceptance rate": ratio(c.accepted, c.k * c.rounds),
        **{
            f"per-position acceptance rate {i}": ratio(n, c.rounds)
            for i, n in enumerate(c.accepted_at)
        },
    }


def sglang(c: Counts) -> Figures:
    """Return SGLang's `meta_info` of a request; `num_draft_tokens` is K + 1, hence its `- 1`."""
    return {
        "completion_tokens": c.tokens,
        "spec_verify_ct": c.rounds,
        "spec_accept_length": ratio(c.tokens, c.rounds),
        "spec_accept_rate": ratio(c.accepted, c.k * c.rounds),
    }


def tensorrt_llm(c: Counts) -> Figures:
    """Return the figures of `trtllm-bench` (bench/dataclasses/reporting.py).

    TensorRT-LLM infers accepted tokens from lengths, and takes every draft to have K tokens. Its
    iterations after the prefill are rounds, so its `decode_iteration + 1`, which accounts for the
    prefill's token, is their number here.
    """
    return {
        "acceptance_length": ratio(c.tokens, c.rounds),
        "acceptance_rate": ratio(c.tokens - c.rounds, c.k * c.rounds),
    }


def transformers(c: Counts) -> Figures:
    """Return `n_matches` of assisted generation: accepted tokens without the target's."""
    return {"n_matches": ratio(c.accepted, c.rounds)}


def llama_cpp(c: Counts) -> Figures:
    """Return `timings` of llama-server: totals, no rates."""
    return {"draft_n": c.drafted, "draft_n_accepted": c.accepted}


def spec_bench(c: Counts) -> Figures:
    """Return the pooled tokens of a target pass over a category, the target's token included."""
    return {"#mean accepted tokens": ratio(c.tokens, c.rounds)}


def spec_forge(c: Counts) -> Figures:
    """Return the unweighted mean over requests, which can reverse a comparison of pooled means."""
    return {"average acceptance length": ratio(c.mean_length_sum, c.generations)}


def speed_bench(c: Counts) -> Figures:
    """Return SPEED-Bench's acceptance length and conditional rates (metrics/acceptance_rate.py).

    Its rate at a length of n + 1 tokens is the rate of position n: n kept of those that kept n - 1.
    """
    before = [c.rounds, *c.accepted_at]
    rates = {
        f"conditional acceptance rate {i + 1}": ratio(n, before[i])
        for i, n in enumerate(c.accepted_at)
    }
    return {"Average_AL": ratio(c.mean_length_sum, c.generations), **rates}


@dataclass(frozen=True, slots=True)
class VendorTerms:
    """The names and definitions of one project's figures."""

    project: str
    figures: Callable[[Counts], Figures]
    definitions: tuple[str, ...]  # wording of the project's sources, with any differences

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the definitions as lines of text."""
        first, *rest = self.definitions
        return f"In the words of {self.project}: {first}", *rest


POOLED = "It gives them for each request; here they are pooled over all generations."
PREFILL = (
    "It counts the token that it samples in the prefill as well, which no round here contains."
)

TERMS: Mapping[str, VendorTerms] = {
    "vllm": VendorTerms(
        "vLLM (V1 runner, synchronous: v1/spec_decode/metrics.py)",
        vllm,
        (
            "num_drafts are rounds with a draft; mean acceptance length is 1 + accepted / "
            "num_drafts; draft acceptance rate is accepted / drafted tokens.",
            "Per-position rates are of all drafts, those that ended or were rejected before too.",
        ),
    ),
    "vllm-async": VendorTerms(
        "vLLM (V2 runner, or asynchronous scheduling)",
        vllm_async,
        (
            "every round is a draft of K tokens, whether any was found; mean acceptance length is "
            "1 + accepted / rounds; draft acceptance rate is accepted / (K x rounds).",
        ),
    ),
    "sglang": VendorTerms(
        "SGLang (meta_info of a request)",
        sglang,
        (
            "spec_accept_length is completion_tokens / spec_verify_ct; spec_accept_rate is "
            "accepted / (K x spec_verify_ct).",
            f"{POOLED} {PREFILL}",
        ),
    ),
    "trtllm": VendorTerms(
        "TensorRT-LLM (trtllm-bench)",
        tensorrt_llm,
        (
            "acceptance_length is output tokens / iterations; acceptance_rate is (output tokens - "
            "iterations) / (K x iterations), every draft taken to have K tokens.",
            f"{POOLED} {PREFILL}",
        ),
    ),
    "transformers": VendorTerms(
        "transformers (assisted generation)",
        transformers,
        ("n_matches are the accepted tokens of a round, without the target's own.",),
    ),
    "llamacpp": VendorTerms(
        "llama.cpp (timings of llama-server)",
        llama_cpp,
        (
            "draft_n are drafted tokens, draft_n_accepted those of them that were kept.",
            "It gives them for each request; here they are summed over all generations.",
        ),
    ),
    "specbench": VendorTerms(
        "Spec-Bench",
        spec_bench,
        ("#mean accepted tokens is tokens / target passes, the target's own token included.",),
    ),
    "specforge": VendorTerms(
        "SpecForge",
        spec_forge,
        ("average acceptance length is the mean over generations of tokens / rounds, unweighted.",),
    ),
    "speedbench": VendorTerms(
        "SPEED-Bench (specdec_bench of NVIDIA's Model-Optimizer)",
        speed_bench,
        (
            "Average_AL is the mean over generations of tokens / steps, unweighted; a conditional "
            "rate is of the rounds that kept all positions before.",
            f"Its steps are a server's chunks: where the prefill's token has one of its own, it "
            f"counts as a step of one token. {PREFILL}",
        ),
    ),
}
"""Project name on the command line -> its figures of the same counts."""
