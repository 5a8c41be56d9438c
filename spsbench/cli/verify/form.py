"""The form in which the result of an audit is shown."""

from pathlib import Path
from typing import Any, NamedTuple, Self

from spsbench.errors import UsageError
from spsbench.store.atomic import check_replaceable


class Form(NamedTuple):
    """Form of the result: a table, JSON or a page, and its file."""

    name: str  # table, json or html
    plot: Path | None = None
    out: Path | None = None  # file of the HTML page
    run: Path | None = None  # run whose page contains the result
    keep: bool = False  # store the result in the run's folder

    @classmethod
    def of(cls, format: str, json: bool, out: Path | None, **more: Any) -> Self:
        """Check the options and make the form.

        Raises:
            UsageError: incompatible options.
        """
        if json and format == "html":
            raise UsageError("--json with --format html: expected one of the two")
        if out is not None and format != "html":
            raise UsageError(f"--out {out} without --format html: expected both or none")
        if out is not None:
            check_replaceable(out)
        return cls("json" if json else format, out=out, **more)
