"""`summary.json`: every figure with its interval, for programs."""

import json as encoder

from spsbench.metrics.summary import Summary
from spsbench.reports.paper import PaperRow
from spsbench.reports.reporter import Report, Table
from spsbench.settings.records import SCHEMA


def json(report: Report) -> str:
    """ASCII; null where a figure does not apply. Several tables become an array.

    Raises:
        ValueError: a figure that is no finite number.
    """
    made = [_table(table) for table in report.tables]
    content = made[0] if len(made) == 1 else made
    return encoder.dumps(content, indent=2, allow_nan=False) + "\n"


def _table(table: Table) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "run": table.title.run,
        "task": table.title.task,
        **table.identity,
        "remarks": list(table.remarks),
        "seeds": [
            {
                "k": each.cell.k,
                "cell": each.cell.id,
                "seeds": each.seeds,
                "metrics": {name: value._asdict() for name, value in each.figures.items()},
            }
            for each in table.seeds
        ],
        "rows": [_row(s, paper) for s, paper in zip(table.rows, table.paper, strict=True)],
    }


def _row(summary: Summary, paper: PaperRow | None) -> dict[str, object]:
    return {
        "id": summary.cell.id,
        "k": summary.cell.k,
        "group": summary.group,
        "cell": summary.cell.to_json(),
        "samples": summary.samples,
        "n": summary.n,
        "failures": summary.failures,
        "cut": summary.cut,
        "timed": summary.timed,
        "loaded": summary.loaded,
        "horizon": summary.horizon,
        "spread_ms": summary.spread._asdict() if summary.spread else None,
        "metrics": {
            name: estimate._asdict() if estimate else None
            for name, estimate in summary.figures.items()
        },
        "paper": paper._asdict() if paper else None,
    }
