"""Reading `summary.json` back: the rows that `json.py` wrote, as summaries. See docs/records.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MissingError
from spsbench.figures.intervals import Estimate
from spsbench.figures.summary import FIGURES, Spread, Summary
from spsbench.settings.cell import Cell
from spsbench.settings.records import SCHEMA

COUNTS = ("samples", "n", "failures", "cut", "timed", "horizon")


class Saved(NamedTuple):
    """A report as it was saved."""

    run: str
    task: str
    remarks: tuple[str, ...]
    rows: list[Summary]


def read_summary(path: Path) -> Saved:
    """The report in a `summary.json`, or in the folder of a run.

    Raises:
        MissingError: there is none.
        DataError: it is of another schema, or not what `sps` wrote.
    """
    path = path / "summary.json" if path.is_dir() else path
    try:
        report = json.loads(path.read_bytes())
        if report["schema"] != SCHEMA:
            raise DataError(
                f"summary of schema {report['schema']} ({path}): expected schema {SCHEMA}. "
                "Make it anew from the records with sps report"
            )
        rows = [_summary(row) for row in report["rows"]]
        return Saved(report["run"], report["task"], tuple(report["remarks"]), rows)
    except FileNotFoundError as error:
        raise MissingError(
            f"no summary ({path}): expected summary.json of a finished run. Check the path"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"unreadable summary ({path}: {error!r:.100}): expected what `sps` wrote. "
            "Make it anew from the records with sps report"
        ) from error


def _summary(row: Mapping[str, Any]) -> Summary:
    figures: dict[str, Any] = {
        name: value and Estimate(**value) for name, value in row["metrics"].items()
    }
    positions = [name for name in figures if name.startswith("alpha_at.")]
    return Summary(
        cell=Cell.from_json(row["cell"]),
        group=row["group"],
        spread=row["spread_ms"] and Spread(**row["spread_ms"]),
        alpha_at=tuple(figures[name] for name in positions),
        quality={
            name.removeprefix("quality."): value
            for name, value in figures.items()
            if name.startswith("quality.")
        },
        **{name: row[name] for name in COUNTS},
        **{name: figures[name] for name in FIGURES},
    )
