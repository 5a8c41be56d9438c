"""Results of other benchmarks of servers, in this project's terms, with what cannot be compared.

Four tools are known, by the fields of their files. Figures that a file does not give are left out,
never guessed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.reports.others import aiperf, guidellm, specforge, vllm
from spsbench.reports.others.measurement import Results
from spsbench.serving.fields import SCHEMA_ERRORS, FieldError, cut

SIZE_LIMIT = 1 << 26  # bytes
MOST_VALUES = 1 << 22  # each takes up to 72 bytes
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
