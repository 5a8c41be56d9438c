"""What is made of what `sps verify` found."""

from pathlib import Path
from typing import Any, NamedTuple, Self

from spsbench.errors import UsageError
from spsbench.store.atomic import check_replaceable


class Form(NamedTuple):
    """What is made of audits."""

    name: str  # table, json or html
    plot: Path | None = None
    out: Path | None = None  # of html
    run: Path | None = None  # whose page it becomes
    keep: bool = False  # in the run's folder

    @classmethod
    def asked(cls, format: str, json: bool, out: Path | None, **more: Any) -> Self:
        """As it was asked for.

        Raises:
            UsageError: what does not go together.
        """
        if json and format == "html":
            raise UsageError("--json with --format html: expected one of the two")
        if out is not None and format != "html":
            raise UsageError(f"--out {out} without --format html: expected both or none")
        if out is not None:
            check_replaceable(out)
        return cls("json" if json else format, out=out, **more)
