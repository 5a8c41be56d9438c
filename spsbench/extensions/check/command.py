"""`sps check`: audit whether a running server's speculation is lossless and faster."""

import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from spsbench.cli import options as o
from spsbench.cli.terminal import write
from spsbench.errors import Exit, UsageError
from spsbench.extensions.check.options import CheckOptions
from spsbench.hardware.signals import graceful
from spsbench.version import __version__

CODES = {"held": Exit.OK, "bias found": Exit.BIAS}  # whatever else is not valid as an audit


@o.takes(CheckOptions, often=["weights", "chat"])
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
    from spsbench.cli.publish import deliver, show
    from spsbench.extensions.check import page
    from spsbench.reports.reporter import Section

    sentence = page.sentence(result)
    if format == "html":
        deliver(page.as_html(result, __version__), format, out)
        if out is not None:
            write(f"{sentence}\n")
    else:
        notes = tuple(f"- {note}" for note in page.notes(result))
        tables = tuple(page.tables(result))
        section = Section(title="", status="open", line=sentence, notes=notes, tables=tables)
        show(page.as_json(result), format, section)
    raise typer.Exit(CODES.get(result.verdict, Exit.NOT_VALID))
