"""Results of other benchmarks of servers, in this project's terms, with what cannot be compared.

Four are known, by their fields: `vllm bench serve --save-result` (vllm/benchmarks/serve.py),
AIPerf's `profile_export_aiperf.json` (schema 1, its docs/metrics-reference.md), GuideLLM's
`benchmarks.json` (src/guidellm/benchmark/schemas), and SpecForge's benchmark, both the report of
specforge/benchmarks/report.py and the one of bench_eagle3.py. Figures that a file does not give are
left out, never guessed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.serving.acceptance import Acceptance, reached
from spsbench.serving.answers import MAX_DEPTH
from spsbench.serving.fields import (
    SCHEMA_ERRORS,
    FieldError,
    RangeError,
    cut,
    mapping,
    optional,
    real,
    sequence,
)

SIZE_LIMIT = 1 << 26  # bytes
MOST_VALUES = 1 << 22  # each takes up to 72 bytes


class Figure(NamedTuple):
    """A figure in this project's terms, and the field that it comes from."""

    name: str
    value: float
    unit: str
    field: str


@dataclass(frozen=True, slots=True)
class Results:
    """One measurement of a file."""

    tool: str
    title: str
    figures: tuple[Figure, ...]
    apart: tuple[str, ...]  # what cannot be compared with a run of this project, and why

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "tool": self.tool,
            "title": self.title,
            "figures": [figure._asdict() for figure in self.figures],
            "not_comparable": list(self.apart),
        }


def read_results(path: Path) -> list[Results]:
    """Return the measurements of a file: one JSON value, or one a line.

    Raises:
        MissingError: there is no such file.
        DataError: no JSON, or none of the known tools'.
    """
    try:
        if path.stat().st_size > SIZE_LIMIT:
            raise DataError(
                f"more than {SIZE_LIMIT >> 20} MiB ({path}): expected a summary. "
                "Save the result without details"
            )
        content = path.read_text(encoding="utf-8")
        if sum(map(content.count, ",[{")) > MOST_VALUES:
            raise DataError(
                f"more than {MOST_VALUES:,} values ({path}): expected a summary. "
                "Save the result without details"
            )
    except FileNotFoundError as error:
        raise MissingError(f"no results ({path}): expected a file. Check the path") from error
    except PermissionError as error:
        raise PermissionDeniedError(
            f"the results may not be read ({path}): expected read permission. Ask their owner"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"no results ({path}): expected JSON in UTF-8. Check the path") from error
    results: list[Results] = []
    for value in _values(content, path):
        reader = next((read for matches, read in READERS if matches(value)), None)
        if reader is None:
            names = [repr(cut(name, 40)) for name in list(value)[:5]] if _is_object(value) else []
            keys = ", ".join(names) or "no object"
            raise DataError(
                f"results of no known tool ({path}, {keys}): expected the JSON of `vllm bench "
                "serve --save-result`, of AIPerf (profile_export_aiperf.json), of GuideLLM "
                "(benchmarks.json) or of SpecForge's benchmark, or the folder of a run"
            )
        try:
            results += reader(value)
        except SCHEMA_ERRORS as error:
            kind = "" if isinstance(error, FieldError) else f"{type(error).__name__} "
            raise DataError(
                f"results of another version ({path}: {kind}{cut(str(error), 200)}): expected the "
                "fields that docs/check.md names"
            ) from error
    if not any(result.figures for result in results):
        raise DataError(f"no measurements ({path}): expected one or more. Run the benchmark again")
    return results


def tables(results: Sequence[Results]) -> Iterator[tuple[str, Sequence[str], Any, Sequence[str]]]:
    """Yield title, headings, rows and notes of each measurement; a note is given once."""
    noted: set[str] = set()
    for result in results:
        rows = [
            (figure.name, f"{figure.value:.4g} {figure.unit}".strip(), figure.field)
            for figure in result.figures
        ]
        notes = [f"Not comparable: {line}." for line in result.apart if line not in noted]
        noted |= set(result.apart)
        yield f"{result.tool}: {result.title}", ("here", "value", "its field"), rows, notes


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _values(content: str, path: Path) -> list[Any]:
    with suppress(ValueError, RecursionError):
        return [json.loads(content)]
    try:  # `--append-result` writes one value a line
        return [json.loads(line) for line in content.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        reason = cut(str(error), 200)
        raise DataError(f"no JSON ({path}, {reason}): expected results. Check the file") from error


# What the tools have in common.

LAW = "losslessness: the file has no distribution of the texts. `sps check URL` measures it"
BASELINE = (
    "the speed-up: the file has no baseline. `sps check URL --baseline URL2` measures it, paired"
)
PAIRS = (
    "the ratio of two rows as the speed-up: their times hold the prefill and are not paired, and "
    "have no intervals. `sps check URL --baseline URL2` measures it"
)
ALPHA = (
    "alpha: it needs the two distributions at each tested token, which servers do not give; a rate "
    "of accepted over drafted tokens is lower, for it counts tokens that were never tested"
)
TIMES = (
    "times beside those of `sps bench`: these are a client's, with network and queue, at the load "
    "of the file; ours are of one sequence in the process"
)


def _number(values: Mapping[str, Any], field: str) -> float | None:
    """Return a number; None where it is missing, or none that a figure can be made of."""
    with suppress(FieldError):
        return optional(real, values, field)
    return None


def _figures(
    values: Mapping[str, Any], rows: Sequence[tuple[str, str, str, float]]
) -> Iterator[Figure]:
    """Yield the figures of (name, unit, field, factor) whose fields there are."""
    for name, unit, field, factor in rows:
        if (value := _number(values, field)) is not None:
            yield Figure(name, value * factor, unit, field)


def _acceptance(accepted: Acceptance, field: str) -> Iterator[Figure]:
    for name, value, _ in accepted.rows():
        if value is not None:
            yield Figure(name, value, "", field)


# vLLM.

VLLM = (
    ("requests that succeeded", "", "completed", 1),
    ("requests that failed", "", "failed", 1),
    ("most requests at a time", "", "max_concurrency", 1),
    ("TTFT, mean", "ms", "mean_ttft_ms", 1),
    ("TTFT, median", "ms", "median_ttft_ms", 1),
    ("time per output token after the first, mean", "ms", "mean_tpot_ms", 1),
    ("time per output token after the first, median", "ms", "median_tpot_ms", 1),
    ("time between events of a stream, about the loop time, mean", "ms", "mean_itl_ms", 1),
    ("tokens a second of the machine", "", "output_throughput", 1),
    ("requests a second within the objectives (goodput)", "", "request_goodput", 1),
)


def _is_vllm(value: Any) -> bool:
    return isinstance(value, dict) and {"mean_ttft_ms", "total_output_tokens"} <= value.keys()


def _vllm(value: dict[str, Any]) -> list[Results]:
    figures = list(_figures(value, VLLM))
    apart = [LAW, BASELINE, ALPHA, TIMES]
    rounds = _number(value, "spec_decode_num_drafts")
    if rounds:
        name = "spec_decode_per_position_acceptance_rates"
        rates = [real(rate, name) for rate in sequence(value.get(name), name)]
        if len(rates) > MAX_DEPTH:
            raise RangeError(f"{name}: {len(rates)} positions, expected at most {MAX_DEPTH}")
        counted = Acceptance(
            rounds,
            _number(value, "spec_decode_draft_tokens"),
            real(value["spec_decode_accepted_tokens"], "spec_decode_accepted_tokens"),
            None,
            tuple(rate * rounds for rate in rates),
        )
        figures += _acceptance(counted, "spec_decode_*")
        apart += [
            "block efficiency tau: num_drafts leaves out rounds without a draft where the "
            "scheduler plans none, and total_output_tokens has the prefill's token of each request",
            "counts, if anybody else used the server: they are differences of its /metrics",
        ]
    else:
        apart.append("acceptance: the file has no spec_decode_* (no speculation, or no /metrics)")
    if value.get("mean_itl_ms") is not None:
        apart.append(
            "ITL as a time per token: an event of a stream holds all tokens of a round, so ITL is "
            "nearer to the loop time; the time per token is TPOT"
        )
    kind = value.get("backend") or value.get("endpoint_type") or "server"
    parts = [str(value.get("model_id", "?")), str(kind)]
    parts += [f"rate {value['request_rate']}"] if "request_rate" in value else []
    parts += [str(value["date"])] if "date" in value else []
    return [Results("vllm bench serve", _title(parts), tuple(figures), tuple(apart))]


def _title(parts: Sequence[Any]) -> str:
    """Join what a file says of itself, each part cut."""
    return ", ".join(cut(part, 200) for part in parts)


# AIPerf.

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


def _is_aiperf(value: Any) -> bool:
    return isinstance(value, dict) and (
        "aiperf_version" in value
        or ("request_latency" in value and isinstance(value["request_latency"], dict))
    )


def _aiperf(value: dict[str, Any]) -> list[Results]:
    means: dict[str, float] = {}
    for field, block in value.items():
        mean = _number(block, "avg") if isinstance(block, dict) else None
        if mean is not None:
            means[field] = mean * IN_MS.get(str(block.get("unit")), 1.0)
    figures = list(_figures(means, AIPERF))
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
        figures += _acceptance(counted, "total_*, pooled_spec_decode_acceptance_histogram")
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
    title = _title([model, f"AIPerf {cut(value.get('aiperf_version', '?'))}"])
    return [Results("AIPerf", title, tuple(figures), tuple(apart))]


# GuideLLM.

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


def _is_guidellm(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("benchmarks"), list)
        and bool({"args", "metadata"} & value.keys())
    )


def _guidellm(value: dict[str, Any]) -> list[Results]:
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
        counted = _figures(totals, rows)
        figures += [figure._replace(field=f"request_totals.{field}") for figure in counted]
    statistics: dict[str, Any] = {}
    for metric in {field.partition(".")[0] for _, _, field, _ in GUIDELLM}:
        by_status = mapping(metrics.get(metric), metric)
        for name, number in mapping(by_status.get("successful"), f"{metric}.successful").items():
            statistics[f"{metric}.{cut(name, 40)}"] = number
    figures += _figures(statistics, GUIDELLM)
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
    return Results("GuideLLM", _title(parts), tuple(figures), tuple(apart))


# SpecForge.


def _is_specforge(value: Any) -> bool:
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


def _specforge(value: dict[str, Any]) -> list[Results]:
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
    tokens, requests = (_number(metrics, name) for name in ("output_tokens", "num_requests"))
    apart = [LAW, PAIRS, ALPHA, TIMES]
    figures = list(
        _figures(
            metrics,
            (
                ("requests that succeeded", "", "num_requests", 1),
                ("tokens a second of the machine", "", "throughput_tokens_per_second", 1),
                ("share of scored answers that are right", "", "accuracy", 1),
                ("tokens / rounds, with the prefill's token", "", "accept_length", 1),
            ),
        )
    )
    if rounds := _number(metrics, "spec_verify_count"):
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
    title = _title(
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
    figures = list(_figures(mapping(metrics, "metrics"), rows))
    apart = [LAW, PAIRS, ALPHA, TIMES]
    length = _number(metrics, "accept_length")
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
    title = _title([model, task, shape, f"{cut(row['batch_size'])} at a time"])
    return Results("SpecForge (bench_eagle3)", title, tuple(figures), tuple(apart))


READERS: tuple[tuple[Callable[[Any], bool], Callable[[dict[str, Any]], list[Results]]], ...] = (
    (_is_vllm, _vllm),
    (_is_aiperf, _aiperf),
    (_is_guidellm, _guidellm),
    (_is_specforge, _specforge),
)
