"""The summary of a run beside its records."""

from pathlib import Path

from spsbench.reports.json import json
from spsbench.reports.run_tables import Table, tables
from spsbench.store.atomic import replace_file


def conclude(folder: Path) -> list[Table]:
    """Write the summary of a finished run into its folder; its tables.

    Raises:
        SpsError: a damaged run, or a summary that cannot be written.
    """
    made = tables(folder)
    replace_file(folder / "summary.json", json(made[-1].rows, made[-1].title))
    return made
