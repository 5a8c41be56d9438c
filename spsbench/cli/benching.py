"""`sps bench` once torch may be imported: models, the run, its scores and its table."""

import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.bench import jobs, key, run_part, samples_of
from spsbench.cli.models import Models, folders_of, memory, resolved
from spsbench.cli.notes import say
from spsbench.cli.probing import probe
from spsbench.cli.progress import Pace, progress
from spsbench.cli.reporting import conclude
from spsbench.errors import Exit
from spsbench.experiment import Experiment
from spsbench.identity import fingerprint
from spsbench.results import Record, short_hash
from spsbench.scores import score_missing
from spsbench.store.choices import read_choices, write_choices
from spsbench.store.folder import WHOLE, Shard, check_writable
from spsbench.store.interrupt import Interrupt, graceful
from spsbench.store.manifest import Manifest
from spsbench.store.provenance import provenance
from spsbench.store.run import RunWriter, open_run
from spsbench.tasks.task import Sample

RESULTS = Path("results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run goes, and how it starts there."""

    out: Path | None
    name: str  # of the folder under results/, without `out`
    shard: Shard = WHOLE
    resume: bool = False
    resume_anyway: bool = False
    overwrite: bool = False
    score: bool | None = None  # programs; None = if a sandbox holds
    dry_run: bool = False
    offline: bool = False


def carry_out(experiment: Experiment, place: Place) -> int:
    """Run `experiment` into its folder, or only tell what it would cost; the exit code.

    Raises:
        SpsError: models, data or a folder that cannot be used.
    """
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    experiment = resolved(experiment)
    check_writable(place.out or RESULTS)
    folders = folders_of(experiment, place.offline)
    identity = fingerprint(experiment, folders)
    folder = place.out or RESULTS / f"{place.name}-{short_hash(identity, 8)}"
    models = Models(place.offline, experiment.threads)
    for part in experiment.parts:
        say(f"{part.spec}: {part.task.title}")
    if place.dry_run:
        probe(experiment, models, folder)
        return Exit.OK
    known = provenance()
    known["memory"] = memory(experiment, folders)
    manifest = Manifest(
        experiment=experiment.described(),
        cells={cell.id: asdict(cell) for cell in experiment.cells},
        fingerprint=identity,
        provenance=known,
    )
    with (
        open_run(
            folder,
            manifest,
            shard=place.shard,
            resume=place.resume,
            resume_anyway=place.resume_anyway,
            overwrite=place.overwrite,
        ) as writer,
        graceful() as interrupt,
    ):
        models.choices.update(read_choices(writer.folder, place.shard))
        samples = run(experiment, models, writer, interrupt)
        score_missing(experiment, samples, folder, place.shard, lambda: interrupt.requested)
        if interrupt.requested:
            say(f"stopped after {writer.count} records. Go on with: {again(folder)}")
            return interrupt.code
    judged = judge_programs(experiment, folder, place.score)
    made = conclude(folder)
    say(f"records, scores and summary.json are in {folder}")
    failed = sum(row.failures for table in made for row in table.rows)
    if failed:
        say(f"{failed} samples failed; try them again with: {again(folder)}")
    return judged or (Exit.FAILED_SAMPLES if failed else Exit.OK)


def judge_programs(experiment: Experiment, folder: Path, wanted: bool | None) -> int:
    """Have the programs of a run executed by `sps score`, in a process without torch.

    The run stands whatever becomes of it: the exit code is that of scoring if it was asked for by
    name, else 0.
    """
    programs = any(part.spec.name == "humaneval" for part in experiment.parts)
    if not programs or wanted is False:
        return Exit.OK
    command = [sys.executable, "-m", "spsbench", "score", str(folder)]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code:
        say(f"the programs are not judged; try again with: sps score {shlex.quote(str(folder))}")
    return code if wanted else Exit.OK


def run(
    experiment: Experiment, models: Models, writer: RunWriter, interrupt: Interrupt
) -> list[list[Sample]]:
    """Make every record that is missing; the samples of each part."""
    samples = [samples_of(part, models) for part in experiment.parts]
    write_choices(writer.folder, writer.shard, models.choices)
    missing = {
        key(job)
        for part, own in zip(experiment.parts, samples, strict=True)
        for job in jobs(part, own, experiment.seed)
        if writer.wants(key(job))
    }
    pace = Pace(len(missing))
    with progress(pace) as shown:
        for part, own in zip(experiment.parts, samples, strict=True):

            def told(job: Any, record: Record) -> None:
                pace.add(job.cell, record)
                shown.show()

            run_part(
                part,
                own,
                models,
                writer,
                experiment=experiment,
                told=told,
                stop=lambda: interrupt.requested,
            )
    return samples


def again(folder: Path) -> str:
    """The command that goes on with the run in `folder`."""
    dropped = {"--resume", "--overwrite"}
    given = [word for word in sys.argv[1:] if word not in dropped]
    if not any(word in ("--out", "-o") or word.startswith("--out=") for word in given):
        given += ["--out", str(folder)]
    return shlex.join(["sps", *given, "--resume"])
