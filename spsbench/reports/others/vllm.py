"""`vllm bench serve --save-result` (vllm/benchmarks/serve.py), and SGLang's bench_serving."""

from typing import Any

from spsbench.foreign import RangeError, cut, real, sequence
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
from spsbench.serving.acceptance import Acceptance
from spsbench.serving.wire import MAX_DEPTH

VLLM = (
    ("requests that succeeded", "", "completed", 1),
    ("requests that failed", "", "failed", 1),
    ("most requests at a time", "", "max_concurrency", 1),
    ("TTFT, mean", "ms", "mean_ttft_ms", 1),
    ("TTFT, median", "ms", "median_ttft_ms", 1),
    ("time per output token after the first, mean", "ms", "mean_tpot_ms", 1),
    ("time per output token after the first, median", "ms", "median_tpot_ms", 1),
    ("time between events of a stream, about the loop time, mean", "ms", "mean_itl_ms", 1),
    ("time of an answer, mean", "ms", "mean_e2el_ms", 1),
    ("tokens a second of the machine", "", "output_throughput", 1),
    ("requests a second within the objectives (goodput)", "", "request_goodput", 1),
)

VLLM_KEYS = frozenset({"completed", "request_throughput", "total_output_tokens"})
SGLANG_KEYS = frozenset({"accept_length", "total_output_tokens_retokenized"})
LENGTH = ("tokens / rounds, with the prefill's token", "", "accept_length", 1)


def is_vllm(value: Any) -> bool:
    """Return whether a value has the fields of the file, whichever percentiles were asked for."""
    return isinstance(value, dict) and value.keys() >= VLLM_KEYS


def read(value: dict[str, Any]) -> list[Results]:
    """Return the measurement of a file."""
    if SGLANG_KEYS & value.keys():
        return [_of_sglang(value)]
    figures = list(figures_of(value, VLLM))
    apart = [LAW, BASELINE, ALPHA, TIMES]
    rounds = number_of(value, "spec_decode_num_drafts")
    if rounds:
        name = "spec_decode_per_position_acceptance_rates"
        rates = [real(rate, name) for rate in sequence(value.get(name), name)]
        if len(rates) > MAX_DEPTH:
            raise RangeError(f"{name}: {len(rates)} positions, expected at most {MAX_DEPTH}")
        counted = Acceptance(
            rounds,
            number_of(value, "spec_decode_draft_tokens"),
            real(value["spec_decode_accepted_tokens"], "spec_decode_accepted_tokens"),
            None,
            tuple(rate * rounds for rate in rates),
        )
        figures += of_acceptance(counted, "spec_decode_*")
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
    return [Results("vllm bench serve", _title(value), tuple(figures), tuple(apart))]


def _of_sglang(value: dict[str, Any]) -> Results:
    figures = list(figures_of(value, (*VLLM, LENGTH)))
    apart = [LAW, BASELINE, ALPHA, TIMES]
    if any(figure.field == "accept_length" for figure in figures):
        apart.append(
            "accept_length as block efficiency tau: it is the server's mean since its start, with "
            "the prefill's token of each request"
        )
    else:
        apart.append("acceptance: the file has no accept_length (no speculation)")
    return Results("SGLang bench_serving", _title(value), tuple(figures), tuple(apart))


def _title(value: dict[str, Any]) -> str:
    kind = value.get("backend") or value.get("endpoint_type") or "server"
    parts = [value.get("model_id", "?"), kind]
    parts += [f"rate {cut(value['request_rate'])}"] if "request_rate" in value else []
    parts += [value["date"]] if "date" in value else []
    return joined(parts)
