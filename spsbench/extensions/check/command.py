"""`sps check`: audit whether a running server's speculation is lossless and faster."""

import itertools
import json as as_text
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from spsbench.cli import options as o
from spsbench.cli.output.flags import with_flags
from spsbench.cli.output.terminal import write
from spsbench.errors import Exit, MissingError, UsageError
from spsbench.store.atomic import check_replaceable, replace_file
from spsbench.version import __version__

AUDIT, SERVER, SPEED = "Audit", "Server", "Speed"
CODES = {"held": Exit.OK, "bias found": Exit.BIAS}  # whatever else is not valid as an audit


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
        float,
        o.option(SERVER, "--timeout", metavar="SECONDS", help="Longest silence in an answer."),
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

    Exits 0 held, 7 bias found, 6 cannot be told or not audited. API keys come from SPS_API_KEY
    and, for the baseline, SPS_BASELINE_API_KEY.
    """
    if json and format == "html":
        raise UsageError("--json with --format html: expected one of the two")
    if out is not None and format != "html":
        raise UsageError("--out without --format html: expected both. Add --format html")
    if out is not None and not out.absolute().parent.is_dir():
        raise MissingError(f"no folder for --out ({out.parent}): expected one. Make it first")
    if out is not None:
        check_replaceable(out)
    if keep is not None and resume is not None:
        raise UsageError("--keep with --resume: expected one of the two")
    if resume is not None and not resume.is_file():
        raise MissingError(f"no kept answers ({resume}): expected a file. Check --resume")
    from spsbench.extensions.check.plan import Plan
    from spsbench.extensions.check.speed import Objectives
    from spsbench.serving.http import Limits, checked

    options: dict[str, Any] = {"prompts": read_prompts(prompts)} if prompts is not None else {}
    options |= {"parts": tuple(only)} if only else {}
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
        **options,
    )
    from spsbench.cli.output.progress import deferred_progress
    from spsbench.extensions.check.library import check as examine

    place = (
        resume or keep or new_file(f"sps-check-{named(plan.url)}-{time.strftime('%m%d-%H%M%S')}")
    )
    with signals_as_interrupts() as signals:
        try:
            with deferred_progress() as watch:
                result = examine(plan, place, resume=resume is not None, watch=watch)
        except KeyboardInterrupt:
            if not signals:
                raise
            raise typer.Exit(128 + signals[0]) from None
    show(result, "json" if json else format, out)
    raise typer.Exit(CODES.get(result.verdict, Exit.NOT_VALID))


@contextmanager
def signals_as_interrupts() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does; yield those that came.

    asyncio ends its tasks at SIGINT. Ignored signals stay ignored (`nohup`).
    """
    signals: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        signals.append(number)
        signal.raise_signal(signal.SIGINT)

    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                handlers[number] = signal.signal(number, interrupt)
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def show(checked: Any, format: str, out: Path | None) -> None:
    """Print the result, or write its page."""
    from spsbench.extensions.check import page

    if format == "json":
        write(as_text.dumps(page.as_json(checked), indent=2, allow_nan=False) + "\n")
        return
    if format == "html":
        content = page.as_html(checked, __version__)
        if out is None:
            write(content)
            return
        replace_file(out, content.encode())
        write(f"{page.sentence(checked)}\n")
        return
    from spsbench.reports.table import drawn

    for table in page.tables(checked):
        write(drawn(table, None))
    for line in [*(f"- {note}" for note in page.notes(checked)), page.sentence(checked)]:
        write(f"{with_flags(line)}\n")


def read_prompts(path: Path) -> tuple[str, ...]:
    """Read a prompt a line, as text or JSON.

    Raises:
        SpsError: as `tasks.jsonl.prompts_in`.
        MissingError: a package that only such a file needs is not installed.
    """
    from spsbench.tasks.jsonl import prompts_in

    try:
        return prompts_in(path)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"{error.name} is not installed ({path}): expected it for such data. "
            "Install it, or give a prompt a line"
        ) from error


def levels_of(text: str) -> tuple[int, ...]:
    """Read `1,2,4,8`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--concurrency {text[:80]}: expected numbers like 1,2,4,8") from error


def new_file(stem: str) -> Path:
    """Return the first of stem.jsonl, stem-2.jsonl, ... that does not exist."""
    names = (Path(f"{stem}{f'-{n}' if n > 1 else ''}.jsonl") for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def named(url: str) -> str:
    """Return host and port as part of a file's name."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port or parts.scheme}"
