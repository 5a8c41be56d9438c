"""`sps bench` once torch may be imported: the run, its progress and its table."""

import shlex
import sys
from pathlib import Path

from spsbench.api.bench import conduct
from spsbench.cli.notes import say
from spsbench.cli.progress import shown
from spsbench.cli.report.show import publish
from spsbench.errors import Exit
from spsbench.settings.execution import Access, Crew, Place
from spsbench.settings.experiment import Experiment
from spsbench.store.interrupt import graceful


def carry_out(
    experiment: Experiment,
    name: str,
    place: Place,
    access: Access,
    crew: Crew,
    *,
    form: str,
    dry_run: bool,
) -> int:
    """Run `experiment` into its folder, or only tell what it would cost; the exit code.

    Raises:
        SpsError: models, data or a folder that cannot be used.
    """
    if dry_run:
        for line in conduct(name, place, access).estimate(experiment):
            print(line)
        say("nothing was written; texts that end early make it shorter")
        return Exit.OK
    with graceful() as interrupt, shown() as watch:
        made = conduct(
            name,
            place,
            access,
            crew=crew,
            watch=watch,
            stop=lambda: interrupt.requested,
        ).run(experiment)
    if made.report is None:
        say(f"stopped after {made.records} records. Go on with: {again(made.folder)}")
        return interrupt.code
    publish(made.report, form)
    say(f"records, scores and summary.json are in {made.folder}")
    if made.failed:
        say(f"{made.failed} samples failed; try them again with: {again(made.folder)}")
    return made.scored or (Exit.FAILED_SAMPLES if made.failed else Exit.OK)


def again(folder: Path) -> str:
    """The command that goes on with the run in `folder`."""
    dropped = {"--resume", "--overwrite"}
    given = [word for word in sys.argv[1:] if word not in dropped]
    if not any(word in ("--out", "-o") or word.startswith("--out=") for word in given):
        given += ["--out", str(folder)]
    return shlex.join(["sps", *given, "--resume"])
