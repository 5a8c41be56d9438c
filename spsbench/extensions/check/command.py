"""`sps check`: audit whether a running server's speculation is lossless and faster."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from spsbench.cli import options as o
from spsbench.cli.terminal import write
from spsbench.errors import Exit, UsageError
from spsbench.extensions.check.options import CheckOptions
from spsbench.hardware.signals import graceful
from spsbench.registry import EXPECT, attribute_at, is_installed
from spsbench.version import __version__

CODES = {"held": Exit.OK, "bias found": Exit.BIAS}  # whatever else is not valid as an audit


def file(help: str) -> Any:
    """Return an option that names a file for a pipeline."""
    return o.option("Pipelines", metavar="FILE", help=help)


@o.take_options(CheckOptions, often=["weights", "chat"])
def check(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Address of the server, without an API key.")
    ] = None,
    format: Annotated[
        Literal["table", "json", "html", "sarif"],
        o.option(o.OUTPUT, "--format", "-f", help="Output format; html goes to the file --out."),
    ] = "table",
    out: o.PageFile = None,
    expect: Annotated[
        Path | None, file("Exit 8 if results are worse than in FILE, else 0.")
    ] = None,
    write_expect: Annotated[Path | None, file("Keep the results in FILE, for --expect.")] = None,
    junit: Annotated[Path | None, file("Write the results to FILE as JUnit's XML.")] = None,
    **options: Any,
) -> None:
    """Audit a running server: output distribution, greedy texts, tokens per pass, speed.

    Exits 0 held, 7 bias found, 6 not decided or not audited. API keys come from SPS_API_KEY
    and, for the baseline, SPS_BASELINE_API_KEY.
    """
    if url is None and options.get("resume") is None:
        raise UsageError("expected the URL of a server, or --resume FILE")
    conclude = None
    if format == "sarif" or expect or write_expect or junit:
        if not is_installed(EXPECT):
            raise UsageError("expected the extension 'conformance', for files of pipelines")
        conclude = attribute_at(EXPECT)(expect, write_expect, junit)
    from spsbench.cli.progress import deferred_progress
    from spsbench.extensions.check.check import run_check
    from spsbench.serving.address import check_address

    o.check_page(format, out)
    place = None
    if url is not None:
        parts, now = urlsplit(check_address(url)), time.strftime("%m%d-%H%M%S")
        place = Path(f"sps-check-{parts.hostname}-{parts.port or parts.scheme}-{now}.jsonl")
    try:
        with graceful(raises=True) as interrupt, deferred_progress() as watch:
            result = run_check(url, options, place, watch=watch)
    except KeyboardInterrupt:
        raise typer.Exit(interrupt.code) from None
    from spsbench.cli.publish import deliver, show
    from spsbench.extensions.check import page

    wrong, log = conclude(result) if conclude else ([], {})
    result.notes += [f"not as expected: {line}" for line in wrong]
    if format == "sarif":
        write(f"{json.dumps(log)}\n")
    elif format == "html":
        deliver(page.as_html(result, __version__), format, out)
        if out is not None:
            write(f"{page.sentence(result)}\n")
    else:
        section = page.as_section(result)
        listed = tuple(f"- {note}" for note in section.notes)
        show(page.to_plain_values(result), format, replace(section, title="", notes=listed))
    code = CODES.get(result.verdict, Exit.NOT_VALID)
    raise typer.Exit(code if expect is None else Exit.WORSE if wrong else Exit.OK)
