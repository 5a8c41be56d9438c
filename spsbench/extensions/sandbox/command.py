"""`sps score`: run the programs of a run, or of a file of samples, in a sandbox."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.extensions.sandbox.options import ScoringOptions
from spsbench.hardware.signals import graceful
from spsbench.settings.options import parse


@o.take_options(ScoringOptions)
def score(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE", help="Folder of a run, or JSONL file of task_id and completion."
        ),
    ],
    format: o.TableFormat = "table",
    **options: Any,
) -> None:
    """Run generated programs in a sandbox and report pass@k. Resumes an interrupted scoring."""
    (scoring_options,) = parse(options, ScoringOptions)

    from spsbench.cli.progress import deferred_progress
    from spsbench.cli.publish import publish
    from spsbench.cli.terminal import one_line, say, write
    from spsbench.extensions.sandbox.scoring import Scoring
    from spsbench.reports.run_tables import conclude_run

    scoring = Scoring(target, scoring_options)
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
        report = conclude_run(target)
        if not as_json:
            publish(report, "table")
