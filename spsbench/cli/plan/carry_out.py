"""`sps plan` at work: its progress, its table, its plot."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.api.fit import check_fit, fit_schedule
from spsbench.api.plan import drawn_again, plan
from spsbench.cli.notes import say
from spsbench.cli.plotting import save_plot
from spsbench.cli.progress import shown
from spsbench.cli.report.show import publish
from spsbench.errors import Exit
from spsbench.spec import Spec
from spsbench.store.interrupt import ENDS_WITHIN, graceful


def carry_out(
    task: str | None,
    folder: Path | None,
    asked: Mapping[str, Any],
    *,
    form: str,
    plot: Path | None,
    fit: Spec | None = None,
) -> int:
    """Plan, or draw the plan in `folder` again; the exit code.

    Raises:
        SpsError: models, data, files or a folder that cannot be used.
    """
    if fit is not None:
        check_fit(fit)
    if folder is not None:
        made = drawn_again(folder, **asked)
    else:
        with graceful(ENDS_WITHIN, stopped) as interrupt, shown() as watch:
            heard: dict[str, Any] = {"watch": watch, "fit": fit}
            made = plan(task, stop=lambda: interrupt.requested, **heard, **asked)
        if made is None:
            say(stopped())
            return interrupt.code
    publish(made.report, form)
    if plot is not None:
        save_plot(made.report.tables[0].figure, plot)
    if made.folder is not None:
        say(f"texts, traces, costs and real rounds are in {made.folder}")
    if fit is not None:
        traced = [made.folder] if made.folder is not None else map(Path, asked.get("trace") or ())
        return fitted_on(fit, list(traced))
    return Exit.OK


def stopped() -> str:
    """Say how to go on; without --out the folder is found again by what is asked."""
    given = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    return f"stopped. Go on with: {shlex.join(['sps', *given, '--resume'])}"


def fitted_on(fit: Spec, traced: Sequence[Path]) -> int:
    """Fit a schedule on traces, and say what it is worth; the exit code.

    Raises:
        SpsError: nothing to fit, traces that cannot be used, a file that cannot be written.
    """
    found = fit_schedule(fit, traced)
    out = dict(fit.args)["out"]
    say(f"{fit.name}: {found}. Use it with --schedule {fit.name}:path={out}")
    return Exit.OK
