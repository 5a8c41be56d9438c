"""`sps score` at work: programs to verdicts, verdicts to tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.cli.notes import say
from spsbench.cli.progress import EVERY
from spsbench.cli.reporting import conclude
from spsbench.digest import cells_of
from spsbench.errors import DataError, Exit
from spsbench.judging import (
    Completion,
    judge,
    of_file,
    of_run,
    problems,
    score_run,
    tally,
    write_results,
)
from spsbench.reports.columns import method, setting
from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.scratch import sweep
from spsbench.scoring.passk import Tally, over_problems, over_samples
from spsbench.store.interrupt import graceful
from spsbench.store.manifest import Manifest
from spsbench.verdicts import NAME, Judged, Key, Verdicts, settings_of


class Held(NamedTuple):
    """How programs are run."""

    level: Level
    limits: Limits
    workers: int


def score_folder(folder: Path, held: Held, ks: Sequence[int]) -> int:
    """Judge the programs of a run, write their scores and its summary; the exit code."""
    made = of_run(folder)
    everything = [Completion(record.sample, record.text) for record in made]
    known, code = _verdicts(everything, folder / NAME, held)
    if code:
        return code
    score_run(folder, made, known)
    conclude(folder)
    for cell in cells_of(Manifest.load(folder), folder):
        own = [Completion(r.sample, r.text) for r in made if r.cell == cell.id]
        if own:
            _show(f"{method(cell)}, {setting(cell)}", own, known, ks)
    return Exit.OK


def score_file(
    path: Path, held: Held, ks: Sequence[int], *, out: Path | None, partial: bool
) -> int:
    """Judge anyone's samples, write them with their results; the exit code.

    Raises:
        DataError: not a file of samples, or problems are missing and `partial` was not said.
    """
    asked = problems()
    completions = of_file(path, asked)
    there = {one.task for one in completions}
    if len(there) < len(asked) and not partial:
        absent = next(task for task in asked if task not in there)
        raise DataError(
            f"{len(there)} of {len(asked)} problems ({path}, {absent} is missing): expected all. "
            "Add them, or score what is there with --allow-partial"
        )
    known, code = _verdicts(completions, path.with_name(f"{path.name}_{NAME}"), held)
    if code:
        return code
    results = out or path.with_name(f"{path.name}_results.jsonl")
    write_results(results, completions, known)
    name = path.name
    if len(there) < len(asked):
        name, ks = f"{name}: partial, {len(there)} of {len(asked)} problems, no pass@k", ()
    _show(name, completions, known, ks)
    say(f"results are in {results}")
    return Exit.OK


def _verdicts(
    completions: Sequence[Completion], path: Path, held: Held
) -> tuple[Mapping[Key, Judged], int]:
    """The verdicts of all, made or found; and the exit code if it was interrupted."""
    import time

    sweep()
    with (
        Verdicts(path, settings_of(held.level, held.limits)) as log,
        graceful() as interrupt,
    ):
        total = len({one.key for one in completions})
        before = sum(key in log.known for key in {one.key for one in completions})
        say(f"{total - before} programs to run in {held.level.name}, {held.workers} at a time")
        last = time.monotonic()

        def told() -> None:
            nonlocal last
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                say(f"{len(log.known)}/{total} programs judged")

        judge(
            completions,
            problems(),
            log,
            level=held.level,
            limits=held.limits,
            workers=held.workers,
            told=told,
            stop=lambda: interrupt.requested,
        )
        if interrupt.requested:
            say(f"stopped after {len(log.known)} of {total} verdicts. The same command goes on")
        return log.known, interrupt.code


def _show(
    name: str, completions: Iterable[Completion], known: Mapping[Key, Judged], ks: Sequence[int]
) -> None:
    """The verdicts of one arm by kind, and its pass@k with both intervals."""
    completions = list(completions)
    kinds = Counter(known[one.key].verdict for one in completions if one.key in known)
    table = Table(title=Text(name), title_justify="left")
    for heading in ("", "", "95 % over problems", "95 % over samples"):
        table.add_column(heading, justify="right" if heading else "left")
    for kind, count in kinds.most_common():
        table.add_row(Text(str(kind)), str(count), "", "")
    tallies = list(tally(completions, known).values())
    for k in ks:
        table.add_row(f"pass@{k}", *_passk(tallies, k))
    Console(highlight=False).print(table)


def _passk(tallies: Sequence[Tally], k: int) -> tuple[str, str, str]:
    if not tallies or min(one.n for one in tallies) < k:
        return "n/a", "", ""
    wide, narrow = over_problems(tallies, k), over_samples(tallies, k)
    ranges = (f"{e.low:.3f} to {e.high:.3f}" if e.low is not None else "" for e in (wide, narrow))
    return (f"{wide.mean:.3f}", *ranges)  # type: ignore[return-value]
