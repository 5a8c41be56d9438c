"""`sps check`: audit whether a running server's speculation is lossless and faster."""

import json as as_text
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from spsbench.cli import options as o
from spsbench.cli.terminal import with_flags, write
from spsbench.errors import Exit, UsageError
from spsbench.extensions.check.options import CheckOptions
from spsbench.hardware.signals import graceful
from spsbench.store.atomic import replace_file
from spsbench.version import __version__

CODES = {"held": Exit.OK, "bias found": Exit.BIAS}  # whatever else is not valid as an audit


@o.takes(CheckOptions, often=["weights"])
def check(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Address of the server, without an API key."),
    ] = None,
    format: o.AuditFormat = "table",
    out: o.PageFile = None,
    **options: Any,
) -> None:
    """Audit a running server: output distribution, greedy texts, tokens per pass, speed.

    Exits 0 held, 7 bias found, 6 not decided or not audited. API keys come from SPS_API_KEY
    and, for the baseline, SPS_BASELINE_API_KEY.
    """
    if url is None and options.get("resume") is None:
        raise UsageError("expected the URL of a server, or --resume FILE")
    from spsbench.cli.progress import deferred_progress
    from spsbench.extensions.check.check import run_check
    from spsbench.serving.address import checked

    o.check_page(format, out)
    place = None
    if url is not None:
        parts, at = urlsplit(checked(url)), time.strftime("%m%d-%H%M%S")
        place = Path(f"sps-check-{parts.hostname}-{parts.port or parts.scheme}-{at}.jsonl")
    try:
        with graceful(raises=True) as interrupt, deferred_progress() as watch:
            result = run_check(url, options, place, watch=watch)
    except KeyboardInterrupt:
        raise typer.Exit(interrupt.code) from None
    show(result, format, out)
    raise typer.Exit(CODES.get(result.verdict, Exit.NOT_VALID))


def show(checked: Any, format: str, out: Path | None) -> None:
    """Print the result, or write its page."""
    from spsbench.extensions.check import page

    if format == "json":
        write(as_text.dumps(page.as_json(checked), indent=2, allow_nan=False) + "\n")
    elif format == "html" and out is None:
        write(page.as_html(checked, __version__))
    elif format == "html" and out is not None:
        replace_file(out, page.as_html(checked, __version__).encode())
        write(f"{page.sentence(checked)}\n")
    else:
        from spsbench.reports.table import drawn

        for table in page.tables(checked):
            write(drawn(table, None))
        for line in [*(f"- {note}" for note in page.notes(checked)), page.sentence(checked)]:
            write(f"{with_flags(line)}\n")
