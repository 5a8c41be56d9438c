"""Results of other benchmarks of servers, in this project's terms, with what cannot be compared.

Four tools are known, by the fields of their files. Figures that a file does not give are left out,
never guessed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.foreign import SCHEMA_ERRORS, FieldError, NotJSONError, cut, parse_json, read_foreign
from spsbench.reports.others import aiperf, guidellm, specforge, vllm
from spsbench.reports.others.measurement import Results

SIZE_LIMIT = 1 << 26  # bytes
WHAT = "results of a benchmark of servers, in JSON, without details"
READERS: tuple[tuple[Callable[[Any], bool], Callable[[dict[str, Any]], list[Results]]], ...] = (
    (vllm.is_vllm, vllm.read),
    (aiperf.is_aiperf, aiperf.read),
    (guidellm.is_guidellm, guidellm.read),
    (specforge.is_specforge, specforge.read),
)


def read_results(path: Path) -> list[Results]:
    """Return the measurements of a file: one JSON value, or one a line.

    Raises:
        MissingError: there is no such file.
        PermissionDeniedError: it is not readable.
        DataError: no JSON, or none of the known tools'.
    """
    content = read_foreign(path, WHAT, SIZE_LIMIT)
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


def _values(content: bytes, path: Path) -> list[Any]:
    with suppress(NotJSONError):
        return [parse_json(content, strict=False, limit=SIZE_LIMIT)]
    try:  # `--append-result` writes one value a line
        return [parse_json(line, strict=False) for line in content.split(b"\n") if line.strip()]
    except NotJSONError as error:
        raise DataError(f"{error} ({path}): expected {WHAT}. Check the file") from error
