"""`summary.json`: every figure with its interval, for programs."""

import json as encoder
from collections.abc import Sequence
from dataclasses import asdict

from spsbench.figures.summary import Summary
from spsbench.reports.paper import beside
from spsbench.reports.reporter import Title, remarks
from spsbench.settings.records import SCHEMA


def json(rows: Sequence[Summary], title: Title) -> bytes:
    """ASCII; null where a figure does not apply.

    Raises:
        ValueError: a figure that is no finite number.
    """
    report = {
        "schema": SCHEMA,
        "run": title.run,
        "task": title.task,
        "remarks": remarks(rows, title),
        "rows": [_row(s) for s in rows],
    }
    return (encoder.dumps(report, indent=2, allow_nan=False) + "\n").encode("ascii")


def _row(summary: Summary) -> dict[str, object]:
    return {
        "id": summary.cell.id,
        "k": summary.cell.k,
        "group": summary.group,
        "cell": asdict(summary.cell),
        "samples": summary.samples,
        "n": summary.n,
        "failures": summary.failures,
        "cut": summary.cut,
        "timed": summary.timed,
        "horizon": summary.horizon,
        "spread_ms": summary.spread._asdict() if summary.spread else None,
        "metrics": {
            name: estimate._asdict() if estimate else None
            for name, estimate in summary.figures.items()
        },
        "paper": theirs._asdict() if (theirs := beside(summary)) else None,
    }
