"""AIPerf's `profile_export_aiperf.json` (schema 1, its docs/metrics-reference.md)."""

from typing import Any

from spsbench.foreign import cut, mapping
from spsbench.reports.others.measurement import (
    ALPHA,
    BASELINE,
    LAW,
    TIMES,
    Results,
    figures_of,
    joined,
    number_of,
    of_acceptance,
)
from spsbench.serving.acceptance import Acceptance, reached

AIPERF = (
    ("requests that succeeded", "", "request_count", 1),
    ("requests that failed", "", "error_request_count", 1),
    ("TTFT, mean", "ms", "time_to_first_token", 1),
    ("time per output token after the first, mean", "ms", "inter_token_latency", 1),
    ("time between events of a stream, about the loop time, mean", "ms", "inter_chunk_latency", 1),
    ("tokens a second of a user, mean", "", "output_token_throughput_per_user", 1),
    ("tokens a second of the machine", "", "output_token_throughput", 1),
    ("requests a second within the objectives (goodput)", "", "goodput", 1),
)
IN_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}


def is_aiperf(value: Any) -> bool:
    """Return whether a value has the fields of the file."""
    return isinstance(value, dict) and (
        "aiperf_version" in value
        or ("request_latency" in value and isinstance(value["request_latency"], dict))
    )


def read(value: dict[str, Any]) -> list[Results]:
    """Return the measurement of a file."""
    means: dict[str, float] = {}
    for field, block in value.items():
        mean = number_of(block, "avg") if isinstance(block, dict) else None
        if mean is not None:
            means[field] = mean * IN_MS.get(str(block.get("unit")), 1.0)
    figures = list(figures_of(means, AIPERF))
    apart = [LAW, BASELINE, ALPHA, TIMES]
    rounds = means.get("total_spec_decode_steps")
    if rounds:
        counts = value.get("pooled_spec_decode_acceptance_histogram")
        counted = Acceptance(
            rounds,
            means.get("total_draft_tokens"),
            means["total_accepted_draft_tokens"],
            None,
            reached(counts),
        )
        figures += of_acceptance(counted, "total_*, pooled_spec_decode_acceptance_histogram")
        apart += [
            "spec_decode_acceptance_length and spec_decode_draft_acceptance_rate: they weigh "
            "requests equally; the pooled counts above weigh rounds, as here",
            "block efficiency tau: it needs the emitted tokens of rounds alone, and "
            "output_sequence_length has the prefill's token and a client's count",
        ]
    else:
        apart.append(
            "acceptance: no request said it (vLLM: --per-request-spec-decode-metrics); gauges of "
            "server_metrics_export.json are of the server's latest moments, not of the run"
        )
    config = mapping(value.get("input_config"), "input_config")
    endpoint = mapping(config.get("endpoint"), "input_config.endpoint")
    models = endpoint.get("model_names") or config.get("models") or ["?"]
    model = models[0] if isinstance(models, list) and models else models
    title = joined([model, f"AIPerf {cut(value.get('aiperf_version', '?'))}"])
    return [Results("AIPerf", title, tuple(figures), tuple(apart))]
