"""GuideLLM's `benchmarks.json` (src/guidellm/benchmark/schemas)."""

from collections.abc import Mapping
from typing import Any

from spsbench.foreign import cut, mapping, sequence
from spsbench.reports.others.measurement import (
    ALPHA,
    BASELINE,
    LAW,
    TIMES,
    Figure,
    Results,
    figures_of,
    joined,
)

GUIDELLM = (
    ("most requests at a time", "", "request_concurrency.max", 1),
    ("requests at a time, mean", "", "request_concurrency.mean", 1),
    ("TTFT, mean", "ms", "time_to_first_token_ms.mean", 1),
    ("TTFT, median", "ms", "time_to_first_token_ms.median", 1),
    ("time per output token after the first, mean", "ms", "inter_token_latency_ms.mean", 1),
    ("time per output token after the first, median", "ms", "inter_token_latency_ms.median", 1),
    ("tokens a second of the machine", "", "output_tokens_per_second.mean", 1),
    ("tokens of an answer, mean", "", "output_token_count.mean", 1),
    ("tokens an event after the first, mean", "", "iter_tokens_per_iteration.mean", 1),
)
EVENTS = (
    "tokens an event of a stream as tokens a pass: a server may send a round in several events, or "
    "several rounds in one"
)


def is_guidellm(value: Any) -> bool:
    """Return whether a value has the fields of the file; versions before 0.4 name no more."""
    benchmarks = value.get("benchmarks") if isinstance(value, dict) else None
    return isinstance(benchmarks, list) and all(
        isinstance(benchmark, dict) and "metrics" in benchmark for benchmark in benchmarks
    )


def read(value: dict[str, Any]) -> list[Results]:
    """Return the measurements of a file."""
    version = mapping(value.get("metadata"), "metadata").get("guidellm_version", "?")
    benchmarks = sequence(value["benchmarks"], "benchmarks")
    return [
        _benchmark_of_guidellm(mapping(benchmark, "benchmarks"), version)
        for benchmark in benchmarks
    ]


def _benchmark_of_guidellm(value: Mapping[str, Any], version: Any) -> Results:
    metrics = mapping(value["metrics"], "metrics")
    figures: list[Figure] = []
    totals = mapping(metrics.get("request_totals"), "request_totals")
    for name, field in (("succeeded", "successful"), ("failed", "errored")):
        rows = ((f"requests that {name}", "", field, 1),)
        counted = figures_of(totals, rows)
        figures += [figure._replace(field=f"request_totals.{field}") for figure in counted]
    statistics: dict[str, Any] = {}
    for metric in {field.partition(".")[0] for _, _, field, _ in GUIDELLM}:
        by_status = mapping(metrics.get(metric), metric)
        for name, number in mapping(by_status.get("successful"), f"{metric}.successful").items():
            statistics[f"{metric}.{cut(name, 40)}"] = number
    figures += figures_of(statistics, GUIDELLM)
    apart = [LAW, BASELINE, ALPHA, TIMES, "acceptance: GuideLLM does not ask for it", EVENTS]
    apart.append(
        "time_per_output_token_ms as the time of a token: it divides the latency of a request, "
        "with its prefill, by its tokens; inter_token_latency_ms leaves the first one out"
    )
    config = mapping(value.get("config"), "config")
    backend = mapping(config.get("backend"), "config.backend")
    strategy = mapping(config.get("strategy"), "config.strategy")
    parts = [backend.get("model", "?"), f"GuideLLM {cut(version)}", strategy.get("type_", "?")]
    for name in ("streams", "rate"):
        parts += [f"{name} {cut(strategy[name])}"] if name in strategy else []
    return Results("GuideLLM", joined(parts), tuple(figures), tuple(apart))
