"""`sps check`: audit whether a running server's speculation is lossless and faster."""

import json as as_text
import sys
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from spsbench import __version__
from spsbench.cli import options as o
from spsbench.errors import DataError, Exit, MissingError, UsageError, WriteError

AUDIT, SERVER, SPEED = "Audit", "Server", "Speed"
CODES = {"held": Exit.OK, "bias found": Exit.BIAS, "cannot be told": Exit.NOT_VALID}
TEXTS = ("prompt", "text", "turns")  # fields of a line of JSON that hold a prompt


def check(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the server, without an API key.")
    ],
    baseline: Annotated[
        str | None,
        o.option(
            SERVER,
            "--baseline",
            metavar="URL",
            help="Server of the same model without speculation, as a baseline.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        o.option(
            SERVER,
            "--weights",
            metavar="MODEL",
            help="The same model, loaded here to compute the probability of each token.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        o.option(
            SERVER,
            "--draft",
            metavar="MODEL",
            help="The server's draft model, with --weights: bets on the tokens that it prefers.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        o.option(SERVER, "--model", help="Name of the model on the server, if it serves several."),
    ] = None,
    baseline_model: Annotated[
        str | None,
        o.option(SERVER, "--baseline-model", help="Name of the model on the baseline server."),
    ] = None,
    chat: Annotated[
        bool,
        o.option(
            SERVER, "--chat", help="Send chat messages; the server applies its chat template."
        ),
    ] = False,
    timeout: Annotated[
        float, o.option(SERVER, "--timeout", metavar="SECONDS", help="Time limit for one answer.")
    ] = 120.0,
    retries: Annotated[
        int, o.option(SERVER, "--retries", help="Number of retries of a failed request.")
    ] = 3,
    only: Annotated[
        list[str] | None,
        o.option(AUDIT, "--only", help="Run only this part: law, greedy or speed; repeatable."),
    ] = None,
    prompts: Annotated[
        Path | None,
        o.option(
            AUDIT,
            "--prompts",
            metavar="FILE",
            help="File of prompts, one per line, as text or JSON.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, o.option(AUDIT, "--max-new-tokens", "-n", help="Maximum tokens per text.")
    ] = 64,
    temperature: Annotated[
        list[float] | None,
        o.option(
            AUDIT,
            "--temperature",
            help="Sampling temperature, with --weights; repeatable. Default: 1 and 0.5.",
        ),
    ] = None,
    bias: Annotated[
        float, o.option(AUDIT, "--bias", help="Smallest bias that the audit must detect.")
    ] = 0.05,
    level: Annotated[
        float, o.option(AUDIT, "--level", help="Probability of a false alarm.")
    ] = 1e-3,
    max_tokens: Annotated[
        int, o.option(AUDIT, "--max-tokens", help="Maximum number of sampled tokens.")
    ] = 20_000,
    seed: Annotated[int, o.option(AUDIT, "--seed", help="Random seed of the first text.")] = 0,
    concurrency: Annotated[
        str,
        o.option(
            SPEED, "--concurrency", help="Numbers of concurrent requests, each timed in turn."
        ),
    ] = "1,2,4,8",
    requests: Annotated[
        int,
        o.option(
            SPEED, "--requests", help="Requests per timed block; each server gets two blocks."
        ),
    ] = 16,
    slo: Annotated[
        str | None,
        o.option(SPEED, "--slo", help="Latency objectives for goodput: ttft:500ms,tpot:50ms."),
    ] = None,
    keep: Annotated[
        Path | None,
        o.option(
            o.OUTPUT,
            "--keep",
            metavar="FILE",
            help="File that keeps each answer. Default: named by server and time.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        o.option(
            o.OUTPUT,
            "--resume",
            metavar="FILE",
            help="Resume an interrupted check from its file of answers.",
        ),
    ] = None,
    format: o.AuditFormat = "table",
    json: o.Json = False,
    out: o.PageFile = None,
    debug: o.Debug = False,
) -> None:
    """Audit a running server: output distribution, greedy texts, tokens per pass, speed.

    Exits 0 held, 7 bias found, 6 cannot be told. API keys come from SPS_API_KEY and, for the
    baseline, SPS_BASELINE_API_KEY.
    """
    if json and format == "html":
        raise UsageError("--json with --format html: expected one of the two")
    if out is not None and format != "html":
        raise UsageError("--out without --format html: expected both. Add --format html")
    if out is not None and not out.absolute().parent.is_dir():
        raise MissingError(f"no folder for --out ({out.parent}): expected one. Make it first")
    if keep is not None and resume is not None:
        raise UsageError("--keep with --resume: expected one of the two")
    if resume is not None and not resume.is_file():
        raise MissingError(f"no kept answers ({resume}): expected a file. Check --resume")
    from spsbench.servers.http import Limits, checked
    from spsbench.servers.plan import Plan
    from spsbench.servers.speed import Objectives

    given: dict[str, Any] = {"prompts": read_prompts(prompts)} if prompts is not None else {}
    given |= {"parts": tuple(only)} if only else {}
    plan = Plan(
        url=checked(url),
        baseline=checked(baseline) if baseline else None,
        weights=weights,
        draft=draft,
        model=model,
        baseline_model=baseline_model,
        chat=chat,
        length=max_new_tokens,
        temperatures=tuple(temperature or ()),
        bias=bias,
        level=level,
        most=max_tokens,
        concurrency=levels_of(concurrency),
        requests=requests,
        objectives=Objectives.parse(slo) if slo else None,
        seed=seed,
        limits=Limits(timeout=timeout, retries=retries),
        **given,
    )
    from spsbench.api.check import check as examine
    from spsbench.cli.output.progress import alive

    place = (
        resume or keep or Path(f"sps-check-{named(plan.url)}-{time.strftime('%m%d-%H%M%S')}.jsonl")
    )
    with alive(f"checking {plan.url}"):
        found = examine(plan, place, resume=resume is not None)
    show(found, "json" if json else format, out)
    raise typer.Exit(CODES[found.verdict])


def show(found: Any, format: str, out: Path | None) -> None:
    """Print the result, or write its page."""
    from spsbench.servers import page

    if format == "json":
        print(as_text.dumps(page.as_json(found), indent=2))
        return
    if format == "html":
        made = page.as_html(found, __version__)
        if out is None:
            sys.stdout.write(made)
            return
        try:
            out.write_text(made, encoding="utf-8")
        except OSError as error:
            raise WriteError.of(error, out) from error
        print(page.sentence(found))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    for each in page.tables(found):
        drawn = Table(*each.head, title=each.title, title_justify="left")
        for row in each.rows:
            drawn.add_row(*row)
        console.print(drawn if each.rows else f"{each.title}: {each.head[0]}")
    for line in page.notes(found):
        console.print(f"- {line}")
    console.print(page.sentence(found))


def read_prompts(path: Path) -> tuple[str, ...]:
    """Read a prompt a line: text, or JSON with `prompt`, `text` or `turns`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise MissingError(f"no prompts ({path}): expected a file. Check --prompts") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"no prompts ({path}): expected UTF-8 text. Check --prompts") from error
    found = []
    for line in filter(str.strip, lines):
        if not line.lstrip().startswith("{"):
            found.append(line)
            continue
        try:
            values = as_text.loads(line)
            value = next(values[name] for name in TEXTS if name in values)
            found.append(value if isinstance(value, str) else value[0])
        except (ValueError, StopIteration, IndexError, KeyError) as error:
            raise DataError(
                f"no prompt in a line ({path}): expected one of {', '.join(TEXTS)}. Check the file"
            ) from error
    if not found:
        raise DataError(f"no prompts ({path}): expected a line or more. Check --prompts")
    return tuple(found)


def levels_of(text: str) -> tuple[int, ...]:
    """Read `1,2,4,8`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--concurrency {text}: expected numbers like 1,2,4,8") from error


def named(url: str) -> str:
    """Return host and port as part of a file's name."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port or parts.scheme}"
