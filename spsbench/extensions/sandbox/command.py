"""`sps score`: run the programs of a run, or of a file of samples, in a sandbox."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import options as o
from spsbench.errors import UsageError
from spsbench.extensions.sandbox.choice import UNDERSTOOD, Name
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.hardware.signals import graceful
from spsbench.settings.options import MACHINE

SANDBOX, SCORES = "Sandbox", "Scores"
DEFAULT = ProgramLimits()
LEAST_MEMORY = 64  # MiB; an interpreter with a few modules needs about half of it


def score(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE", help="Folder of a run, or JSONL file of task_id and completion."
        ),
    ],
    sandbox: Annotated[
        Name,
        o.option(
            SANDBOX,
            "--sandbox",
            help="Isolation of the programs; auto is the strongest that works here.",
        ),
    ] = "auto",
    timeout: Annotated[
        float, o.option(SANDBOX, "--timeout", help="Seconds of CPU time per program.")
    ] = DEFAULT.timeout,
    memory: Annotated[
        int, o.option(SANDBOX, "--memory", help="MiB of address space per program.")
    ] = DEFAULT.memory,
    understood: Annotated[
        bool, o.option(SANDBOX, UNDERSTOOD, help="Confirm --sandbox none, which isolates nothing.")
    ] = False,
    workers: Annotated[
        int | None,
        o.option(
            MACHINE,
            "--workers",
            "-w",
            help="Number of programs to run at a time.",
            show_default="cores",
        ),
    ] = None,
    k: Annotated[
        str, o.option(SCORES, "--k", "-k", help="Values of k for pass@k: 1,10,100 or 1..5.")
    ] = "1,10,100",
    allow_partial: Annotated[
        bool,
        o.option(SCORES, "--allow-partial", help="Compute scores even if problems are missing."),
    ] = False,
    overwrite: Annotated[
        bool,
        o.option(SCORES, "--overwrite", help="Run all programs again; the old log is moved aside."),
    ] = False,
    format: o.TableFormat = "table",
) -> None:
    """Run generated programs in a sandbox and report pass@k. Resumes an interrupted scoring."""
    for flag, value, low, high, expected in (
        ("--timeout", timeout, 0.1, 3600, "0.1 to 3600 seconds"),
        ("--memory", memory, LEAST_MEMORY, 1 << 20, f"{LEAST_MEMORY} to {1 << 20} MiB"),
        ("--workers", workers, 1, 1024, "1 to 1024"),
    ):
        if value is not None and not low <= value <= high:
            raise UsageError(f"{flag} is {value}: expected {expected}")
    if understood and sandbox != "none":
        raise UsageError(f"{UNDERSTOOD} with --sandbox {sandbox}: expected --sandbox none with it")

    from spsbench.cli.progress import deferred_progress
    from spsbench.cli.publish import publish
    from spsbench.cli.terminal import one_line, say, write
    from spsbench.extensions.sandbox.scoring import Scoring, ScoringOptions

    scoring = Scoring(
        ScoringOptions(
            target=target,
            sandbox=sandbox,
            limits=ProgramLimits(timeout=timeout, memory=memory),
            understood=understood,
            workers=workers,
            ks=k,
            allow_partial=allow_partial,
            overwrite=overwrite,
        )
    )
    with graceful() as interrupt, deferred_progress() as watch:
        scoring.judge(watch, lambda: interrupt.requested)
    if interrupt.requested:
        again = shlex.join(["sps", *(a for a in sys.argv[1:] if a != "--overwrite")])
        say(f"stopped after {len(scoring.judged)} verdicts. Continue with: {again}")
        raise typer.Exit(interrupt.code)
    text, as_json = scoring.write_figures(), format == "json"
    if as_json:
        write(text)
    elif not scoring.is_run:
        write("".join(f"{one_line(line)}\n" for line in scoring.lines()))
    if scoring.is_run:
        report = scoring.report()
        if not as_json:
            publish(report, "table")
