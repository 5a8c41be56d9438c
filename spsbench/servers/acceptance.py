"""Acceptance statistics of engines, in this project's terms and in those of the engine.

Per request: vLLM's `metrics.speculative_decoding`, SGLang's `meta_info.spec_*`, llama-server's
`timings`. Per server: the difference of its counters at /metrics before and after, which is valid
only without other clients; vLLM and llama.cpp use the same names with different prefixes. All
of it, except the counters' format, is read from the engines' sources and not tested.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from spsbench.servers.engines import Answer

LINE = re.compile(r"^(?:vllm|llamacpp|trtllm)[:_]spec_decode_(\w+?)(?:_total)?(\{[^}]*\})? (\S+)")
PLACE = re.compile(r'position="(\d+)"')


class Span(NamedTuple):
    """The tokens of one pass, or of several of which an engine tells only sums."""

    emitted: int
    seconds: float
    drafted: int = 0
    tested: int = 0  # -1 = not told
    accepted: int = 0
    passes: int = 1  # 0 = not told


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of rounds, drafted and accepted tokens, and rounds that accepted each position."""

    rounds: float
    drafted: float | None
    accepted: float
    emitted: float | None  # tokens of the answers; None if only counters are known
    kept: tuple[float, ...] = ()  # rounds that accepted position 1, 2, ...
    source: str = ""

    @property
    def marginal(self) -> list[float]:
        """Return the share of rounds that accepted each position: vLLM's per-position rate."""
        return [count / self.rounds for count in self.kept] if self.rounds else []

    @property
    def conditional(self) -> list[float]:
        """Return the acceptance rate of each position given all before it: SPEED-Bench's rate."""
        before = [self.rounds, *self.kept]
        return [b / a for a, b in zip(before, self.kept, strict=False) if a > 0]

    def rows(self) -> list[tuple[str, float | None, str]]:
        """Return figures as (this project's term, value, the engines' term)."""
        rounds = self.rounds or float("nan")
        mean = 1 + self.accepted / rounds
        drafted = self.accepted / self.drafted if self.drafted else None
        tau = self.emitted / rounds if self.emitted else None
        made: list[tuple[str, float | None, str]] = [
            ("tokens a pass, accepted + 1", mean, "vLLM mean acceptance length"),
            ("block efficiency tau, emitted / rounds", tau, "SGLang spec_accept_length"),
            ("draft acceptance, accepted / drafted", drafted, "vLLM draft acceptance rate"),
        ]
        for i, rate in enumerate(self.marginal):
            made.append((f"position {i + 1} accepted, of all rounds", rate, "vLLM per position"))
        for i, rate in enumerate(self.conditional):
            words = f"position {i + 1} accepted, where those before were"
            made.append((words, rate, "SPEED-Bench conditional"))
        return made

    def to_json(self) -> dict[str, Any]:
        """Return counts and figures."""
        figures = {name: value for name, value, _ in self.rows()}
        return {**asdict(self), "figures": figures}


def of_answers(answers: Sequence[Answer]) -> Acceptance | None:
    """Add up the counts in the answers; None if the answers have none."""
    found = [each for each in map(of_answer, answers) if each is not None]
    if not found:
        return None
    return added(found)


def added(found: Sequence[Acceptance]) -> Acceptance:
    """Add counts; positions are kept only if all parts have them."""
    deepest = max(len(each.kept) for each in found)
    every = all(each.kept or not each.accepted for each in found)
    kept = [sum(e.kept[i] for e in found if len(e.kept) > i) for i in range(deepest)]
    drafted = [each.drafted for each in found if each.drafted is not None]
    emitted = [each.emitted for each in found if each.emitted is not None]
    return Acceptance(
        sum(each.rounds for each in found),
        sum(drafted) if len(drafted) == len(found) else None,
        sum(each.accepted for each in found),
        sum(emitted) if len(emitted) == len(found) else None,
        tuple(kept) if every else (),
        found[0].source,
    )


def of_answer(answer: Answer) -> Acceptance | None:
    """Read the counts of one answer."""
    if "vllm" in answer.counts:
        said = answer.counts["vllm"]
        steps = said.get("per_step_accepted")
        kept = reached(histogram(steps)) if steps else ()
        kept = kept or reached(said.get("acceptance_histogram"))
        return Acceptance(
            said["num_spec_steps"],
            said.get("num_draft_tokens"),
            said["num_accepted_draft_tokens"],
            answer.tokens,
            kept,
            "vLLM, per request",
        )
    if "sglang" in answer.counts:
        said = answer.counts["sglang"]
        rounds = said.get("spec_verify_ct")
        accepted = said.get("spec_num_correct_drafts", said.get("spec_accept_token_num"))
        if not rounds or accepted is None:
            return None
        drafted = said.get("spec_num_proposed_drafts", said.get("spec_draft_token_num"))
        counts = said.get("spec_correct_drafts_histogram", said.get("spec_accept_histogram"))
        kept = reached(counts)
        return Acceptance(rounds, drafted, accepted, answer.tokens, kept, "SGLang meta_info")
    if "llama" in answer.counts:
        said = answer.counts["llama"]
        accepted = said["draft_n_accepted"]
        emitted = said.get("predicted_n", answer.tokens)
        source = "llama-server timings; rounds = predicted_n - draft_n_accepted"
        return Acceptance(emitted - accepted, said["draft_n"], accepted, emitted, (), source)
    return None


def histogram(steps: Sequence[int]) -> list[int]:
    """Count the steps that accepted 0, 1, 2, ... tokens."""
    return [sum(step == n for step in steps) for n in range(max(steps, default=0) + 1)]


def reached(counts: Any) -> tuple[float, ...]:
    """Convert steps that accepted exactly n tokens to steps that accepted position 1, 2, ..."""
    if isinstance(counts, Mapping):  # sparse
        most = max((int(n) for n in counts), default=0)
        counts = [counts.get(str(n), counts.get(n, 0)) for n in range(most + 1)]
    if not counts:
        return ()
    return tuple(float(sum(counts[n:])) for n in range(1, len(counts)))


def counters(page: Any) -> dict[str, float]:
    """Read the speculation counters of a /metrics page; empty if there are none."""
    found: dict[str, float] = {}
    for line in page.splitlines() if isinstance(page, str) else ():
        if not (match := LINE.match(line)):
            continue
        name, labels, value = match.groups()
        place = PLACE.search(labels or "")
        key = f"{name}@{place.group(1)}" if place else name
        try:
            found[key] = found.get(key, 0.0) + float(value)  # sum over the engines of one server
        except ValueError:
            continue
    return found


def between(before: Mapping[str, float], after: Mapping[str, float]) -> Acceptance | None:
    """Return the difference of two pages; None if nothing was counted or the server restarted."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    rounds, accepted = grown.get("num_drafts", 0.0), grown.get("num_accepted_tokens")
    if accepted is None or rounds <= 0 or min(grown.values()) < 0:
        return None
    per_position = "num_accepted_tokens_per_pos@"
    places = sorted(int(name.split("@")[1]) for name in grown if name.startswith(per_position))
    kept = [grown[f"{per_position}{place}"] for place in places]
    while kept and kept[-1] == 0:
        kept.pop()
    drafted = grown.get("num_draft_tokens")
    return Acceptance(rounds, drafted, accepted, None, tuple(kept), "/metrics, before and after")


def spans(answer: Answer, told: Acceptance | None, *, plain: bool) -> tuple[float, list[Span]]:
    """Return the seconds before decoding, and what is known of the passes of a streamed answer.

    The first chunk holds the prefill; its time beyond the median of the later ones is the prefill.
    Passes are single where the engine tells each, or where their counts leave no choice but the
    order; such passes share the time equally unless they are the chunks. Otherwise the answer is
    one span with the engine's sums. A pass without a draft emits one token, so that there are as
    many passes as tokens that were not drafted, or the engine's own number if the end was cut.

    Args:
        answer: streamed.
        told: the engine's counts of this answer; None = it tells nothing.
        plain: the server does not speculate.
    """
    n = answer.tokens
    if not n or not answer.stamps:
        return answer.seconds, []
    gaps = [later - former for former, later in pairwise(answer.stamps)]
    first, rest = answer.stamps[0], sum(gaps)
    sizes = answer.sizes if all(answer.sizes) and sum(answer.sizes) == n else []
    usual = min(first, median(gaps)) if gaps else 0.0
    times = [usual, *gaps]
    if plain or told is None:
        if sizes:
            made = [Span(m, t, passes=m if plain else 0) for m, t in zip(sizes, times, strict=True)]
            return first - usual, made
        return first, [Span(0, 0.0, passes=0), Span(n, rest, passes=n if plain else 0)]
    steps = each_step(answer, told)
    if steps is None:
        accepted = int(told.accepted)
        drafted = -1 if told.drafted is None else int(told.drafted)
        whole = Span(n, rest, drafted, -1, accepted, max(int(told.rounds), n - accepted))
        return first, [Span(0, 0.0, passes=0), whole]
    steps = [(0, 0)] * (n - sum(a + 1 for _, a in steps)) + steps
    left = n
    kept: list[tuple[int, int, int]] = []
    for drafted, accepted in steps:
        kept.append((min(left, accepted + 1), drafted, accepted))
        left -= kept[-1][0]
    if [size for size, *_ in kept] != sizes:
        return first, [
            Span(size, rest / len(kept), drafted, min(a + 1, drafted), a)
            for size, drafted, a in kept
        ]
    return first - usual, [
        Span(size, t, drafted, min(a + 1, drafted), a)
        for (size, drafted, a), t in zip(kept, times, strict=True)
    ]


def each_step(answer: Answer, told: Acceptance) -> list[tuple[int, int]] | None:
    """Return (drafted, accepted) of each pass with a draft; None where only sums are known."""
    said = answer.counts.get("vllm", {})
    accepted, drafted = said.get("per_step_accepted"), said.get("per_step_drafted")
    if accepted and drafted and len(accepted) == len(drafted):
        return list(zip(drafted, accepted, strict=True))
    rounds, depth = int(told.rounds), len(told.kept)
    if not rounds or told.drafted is None or told.drafted % rounds:
        return None
    k = int(told.drafted) // rounds
    if depth > k or sum(told.kept) != told.accepted:
        return None
    reached_by = [rounds, *map(int, told.kept), *[0] * (k - depth), 0]
    exact = [a - b for a, b in pairwise(reached_by)]  # rounds that accepted 0, 1, ... K
    return [(k, n) for n in range(k, -1, -1) for _ in range(exact[n])]
