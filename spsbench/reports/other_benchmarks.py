"""Results of vLLM's, SGLang's and SpecForge's benchmarks, AIPerf and GuideLLM in our terms.

One table of fields reads them all, `other_benchmarks.toml`. What a file does not give is left out,
never guessed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench import untrusted as f
from spsbench.errors import DataError
from spsbench.reports.reporter import TextTable
from spsbench.serving.acceptance import Acceptance, steps_by_position
from spsbench.serving.wire import MAX_DEPTH
from spsbench.tables import read_table

SIZE_LIMIT = 1 << 26  # bytes
MAX_NUMBER = 1e300
WRONG = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
WHAT = "results of a benchmark of servers, in JSON, without details"
SGLANG = "SGLang bench_serving"
TABLE = read_table(__file__, "other_benchmarks.toml")
TITLE = TABLE["title"].split()
OF_TOKENS = ("TTFT", "time ", "tokens ")
"""Beginnings of the figures of which 0 stands for "not measured"."""
SUCCEEDED, FAILED = "requests that succeeded", "requests that failed"
SHARES = "spec_decode_per_position_acceptance_rates"
HISTOGRAM = "pooled_spec_decode_acceptance_histogram"


class Results(NamedTuple):
    """One measurement of a file."""

    tool: str
    title: str
    figures: list[dict[str, Any]]  # each: its name here, value, unit, field, perhaps a reason
    not_comparable: list[str]


def read_results(path: Path) -> list[Results]:
    """Return the measurements of a file: one JSON value, or one a line.

    Raises SpsError for no such file, no JSON, or none of the known tools'.
    """
    content = f.read_untrusted(path, WHAT, SIZE_LIMIT)
    try:
        try:
            values = [f.parse_json(content, strict=False, limit=SIZE_LIMIT)]
        except f.NotJSONError:  # `--append-result` writes one value a line
            lines = filter(bytes.strip, content.split(b"\n"))
            values = [f.parse_json(line, strict=False) for line in lines]
        results = [result for value in values for result in _results(value)]
    except WRONG as error:
        raise DataError(f"{f.cut(str(error), 200)} ({path}): expected {WHAT}") from error
    if not any(result.figures for result in results):
        raise DataError(
            f"no measurement of a known tool ({path}): expected the JSON of `vllm bench serve`, "
            "SGLang, AIPerf, GuideLLM (benchmarks.json) or SpecForge, or the folder of a run"
        )
    return results


def figure_tables(results: Sequence[Results]) -> Iterator[TextTable]:
    """Yield a table of each measurement's figures; equal remarks stand in the first alone."""
    noted: set[str] = set()
    for result in results:
        rows = [(figure["name"], _in_words(figure), figure["field"]) for figure in result.figures]
        notes = [f"Not comparable: {x}." for x in result.not_comparable if x not in noted]
        noted |= set(result.not_comparable)
        headings = ("here", "value", "its field")
        yield TextTable(f"{result.tool}: {result.title}", headings, rows, notes)


def _in_words(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return f"n/a: {figure['reason']}"
    return f"{figure['value']:.4g} {figure['unit']}".strip()


def _results(value: Mapping[str, Any]) -> Iterator[Results]:
    """Yield the measurements in a tool's JSON, one or several; none of a tool that is unknown.

    The first entry of `not_comparable` tells how many requests failed, if any did.
    """
    tool = next((tool for tool, field in TABLE["tools"].items() if field in value), "")
    shared = {name: field for name, field in _flat(value) if name in TITLE}
    for part in value.get("benchmarks", value.get("runs", [value])) if tool else ():
        fields = shared | dict(_flat(part))
        if tool == SGLANG and "mean_itl_ms" in fields:  # which divides events by their tokens
            fields["sglang.mean_itl_ms"] = fields.pop("mean_itl_ms")
        title = [f.cut(fields[name], 200) for name in TITLE if fields.get(name)]
        notes = [line for line, of in TABLE["not_comparable"].items() if not of or fields.get(of)]
        figures = list(_figures(fields))
        counts = {figure["name"]: figure["value"] for figure in figures}
        if bad := counts.get(FAILED):
            total = f" of {bad + counts[SUCCEEDED]:g}" if SUCCEEDED in counts else ""
            notes = [f"the {bad:g}{total} requests that failed: no time has them", *notes]
        yield Results(tool, ", ".join(title), figures, notes)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested objects by dotted names; an object `HISTOGRAM` stays in one piece.

    Lists are fields. Names lose `metrics.` before, `.successful` inside and `.avg` behind.
    """
    for key, field in value.items():
        if isinstance(field, dict) and key != HISTOGRAM:
            yield from _flat(field, f"{prefix}{key}.")
        else:
            name = f"{prefix}{key}".removeprefix("metrics.").removesuffix(".avg")
            yield name.replace(".successful.", "."), field


def _finite(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < MAX_NUMBER else None


def _figures(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield figures as name, value, unit and field, then shares of drafts from counts.

    A 0 of `OF_TOKENS` has the value None, and a `reason`.
    """
    reason = "of zeros, which stand for no measurement"
    for figure, names in TABLE["figures"].items():
        unit = "ms" if figure.startswith(("TTFT", "time ")) else ""
        for name in names.split():
            if (number := _finite(fields.get(name))) is not None:
                if figure == SUCCEEDED and not number:
                    reason = "no request succeeded"
                field = name.removeprefix("sglang.")
                entry = {"name": figure, "value": number, "unit": unit, "field": field}
                is_zero = 0 in (number, _finite(fields.get(name.replace("mean", "median"))))
                missing = is_zero and figure.startswith(OF_TOKENS)
                yield entry | ({"value": None, "reason": reason} if missing else {})
    for counters in map(str.split, TABLE["counts"]):
        rounds, drafted, accepted = (_finite(fields.get(name)) for name in counters)
        if rounds and accepted is not None:
            shares = [_finite(share) or 0.0 for share in fields.get(SHARES) or ()]
            kept = tuple(share * rounds for share in shares) or steps_by_position(
                fields.get(HISTOGRAM)
            )
            counts = Acceptance(rounds, drafted, accepted, None, kept[:MAX_DEPTH])
            for name, share, _ in counts.rows():
                if share is not None:
                    yield {"name": name, "value": share, "unit": "", "field": counters[0]}
