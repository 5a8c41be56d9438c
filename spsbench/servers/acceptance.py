"""Acceptance statistics of engines, in this project's terms and in those of the engine.

Per request: vLLM's `metrics.speculative_decoding`, SGLang's `meta_info.spec_*`, llama-server's
`timings`. Per server: the difference of its counters at /metrics before and after, which is valid
only without other clients; vLLM and llama.cpp use the same names with different prefixes. All
of it, except the counters' format, is read from the engines' sources and not tested.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spsbench.servers.engines import Answer

LINE = re.compile(r"^(?:vllm|llamacpp|trtllm)[:_]spec_decode_(\w+?)(?:_total)?(\{[^}]*\})? (\S+)")
PLACE = re.compile(r'position="(\d+)"')


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
