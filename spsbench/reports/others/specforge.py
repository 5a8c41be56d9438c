"""SpecForge's benchmark: specforge/benchmarks/report.py, and bench_eagle3.py before it."""

from collections.abc import Mapping
from typing import Any

from spsbench.foreign import cut, mapping, sequence
from spsbench.reports.others.measurement import (
    ALPHA,
    LAW,
    PAIRS,
    TIMES,
    Figure,
    Results,
    figures_of,
    joined,
    number_of,
)


def is_specforge(value: Any) -> bool:
    """Return whether a value is one of the two reports."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("runs"), list) and "draft_model" in value:
        return True
    return any(_is_eagle3(rows) for rows in value.values())


def _is_eagle3(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(
        isinstance(row, dict) and {"batch_size", "metrics"} <= row.keys() for row in rows
    )  # fmt: skip


PREFILL = (
    "accept_length as block efficiency tau: SGLang's completion_tokens have the prefill's token of "
    "each request, which no round makes"
)


def read(value: dict[str, Any]) -> list[Results]:
    """Return the measurements of a file."""
    if isinstance(value.get("runs"), list) and "draft_model" in value:
        return [_run_of_specforge(value, mapping(run, "runs")) for run in value["runs"]]
    return [
        _row_of_eagle3(str(value.get("model")), task, row, metrics)
        for task, rows in value.items()
        if _is_eagle3(rows)
        for row in rows
        for metrics in sequence(row["metrics"], "metrics")
    ]


def _run_of_specforge(report: Mapping[str, Any], run: Mapping[str, Any]) -> Results:
    metrics = mapping(run["metrics"], "metrics")
    config = mapping(run.get("config"), "config")
    tokens, requests = (number_of(metrics, name) for name in ("output_tokens", "num_requests"))
    apart = [LAW, PAIRS, ALPHA, TIMES]
    figures = list(
        figures_of(
            metrics,
            (
                ("requests that succeeded", "", "num_requests", 1),
                ("tokens a second of the machine", "", "throughput_tokens_per_second", 1),
                ("share of scored answers that are right", "", "accuracy", 1),
                ("tokens / rounds, with the prefill's token", "", "accept_length", 1),
            ),
        )
    )
    if rounds := number_of(metrics, "spec_verify_count"):
        left_out = "; the file has no counts to leave it out with"
        if tokens is not None and requests is not None:
            tau = (tokens - requests) / rounds
            field = "(output_tokens - num_requests) / spec_verify_count"
            figures.append(Figure("block efficiency tau, emitted / rounds", tau, "", field))
            left_out = "; tau above leaves it out"
        apart += [
            f"{PREFILL}{left_out}",
            "draft acceptance and positions: the file has no drafted tokens",
        ]
    else:
        apart.append("acceptance: spec_verify_count is missing (no speculation)")
    at_once = config.get("batch_size") or report.get("concurrency")
    task = mapping(run["task"], "task")
    sampling = mapping(report.get("sampling"), "sampling")
    title = joined(
        [
            report.get("model", "?"),
            task.get("name", "?"),
            config.get("label", "a running server"),
            f"{cut(at_once)} at a time",
            f"temperature {cut(sampling.get('temperature', '?'))}",
        ]
    )
    return Results("SpecForge", title, tuple(figures), tuple(apart))


def _row_of_eagle3(model: str, task: str, row: dict[str, Any], metrics: dict[str, Any]) -> Results:
    rows = (
        ("questions", "", "num_questions", 1),
        ("tokens a second of the machine", "", "output_throughput", 1),
        ("share of scored answers that are right", "", "accuracy", 1),
    )
    figures = list(figures_of(mapping(metrics, "metrics"), rows))
    apart = [LAW, PAIRS, ALPHA, TIMES]
    length = number_of(metrics, "accept_length")
    if length is not None and length != 1.0:
        figures.append(
            Figure("tokens / rounds, with the prefill's token", length, "", "accept_length")
        )
        apart.append(f"{PREFILL}; the file has no count of rounds to leave it out with")
    else:
        apart.append("acceptance: accept_length is 1.0 where the server says nothing of its rounds")
    steps, topk, drafted = (row.get(name) for name in ("steps", "topk", "num_draft_tokens"))
    shape = "no speculation"
    if steps:
        shape = f"steps {cut(steps)}, top-k {cut(topk)}, {cut(drafted)} draft tokens"
    title = joined([model, task, shape, f"{cut(row['batch_size'])} at a time"])
    return Results("SpecForge (bench_eagle3)", title, tuple(figures), tuple(apart))
