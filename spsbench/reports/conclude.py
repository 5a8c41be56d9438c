"""The summary of a run beside its records."""

from pathlib import Path

from spsbench.reports.json import json
from spsbench.reports.reporter import Report
from spsbench.reports.run_tables import report_on
from spsbench.store.atomic import replace_file


def conclude(folder: Path) -> Report:
    """Write the summary of a finished run into its folder; its report.

    Raises:
        SpsError: a damaged run, or a summary that cannot be written.
    """
    made = report_on([folder])
    replace_file(folder / "summary.json", json(made).encode("ascii"))
    return made
