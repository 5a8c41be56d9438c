"""Scores of a run, computed from its records by the task and written next to them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from msgspec import convert

from spsbench.errors import DataError
from spsbench.settings.experiment import Experiment
from spsbench.settings.records import Score
from spsbench.settings.task import Sample
from spsbench.store.atomic import replace_file
from spsbench.store.log import encode_record, iterate
from spsbench.store.records import records
from spsbench.store.run_folder import Shard, belongs, shard_name
from spsbench.tasks.program_log import scores as verdict_scores

LARGEST = 1e300  # sums of larger scores overflow


def scores_path(folder: Path, shard: Shard) -> Path:
    """Return the file of the scores of a shard."""
    return folder / f"scores-{shard_name(shard)}.jsonl"


def score_missing(
    experiment: Experiment,
    samples: Sequence[Sequence[Sample]],
    folder: Path,
    shard: Shard,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Score the successful records of a shard that have no score yet, and write all its scores.

    `samples` are those of each part. `stop` is polled before each record; scores until then are
    kept. A text generated to a fixed length is no answer, and is not scored; without metrics
    nothing is written. SpsError: damaged records or scores, or a full disk.
    """
    if not any(part.task.metrics for part in experiment.parts):
        return
    scores = {s.key: s for s in _scores_in(scores_path(folder, shard))}
    tasks = {
        cell.id: part.task
        for part in experiment.parts
        for cell in part.cells
        if not cell.ignore_eos
    }
    by_task: dict[int, dict[str, Sample]] = {}
    for part, part_samples in zip(experiment.parts, samples, strict=True):
        by_task.setdefault(id(part.task), {}).update({sample.id: sample for sample in part_samples})
    for record in records(folder):
        if stop():
            break
        done = record.key in scores or record.error is not None
        task = tasks.get(record.cell)
        if done or task is None or not belongs(record.key, shard):
            continue
        sample = by_task[id(task)].get(record.sample)
        metrics = {} if sample is None else task.score(sample, record.answer)
        if metrics:
            scores[record.key] = Score(*record.key, metrics)
    write_scores(folder, shard, scores.values())


def read_scores(folder: Path) -> Iterator[Score]:
    """Yield the scores of all shards, and the verdicts on programs; DataError: a damaged file."""
    yield from task_scores(folder)
    yield from verdict_scores(folder)


def task_scores(folder: Path) -> Iterator[Score]:
    """Yield the scores by tasks, of all shards; DataError: a damaged file."""
    for path in sorted(folder.glob("scores-*.jsonl")):
        yield from _scores_in(path)


def write_scores(folder: Path, shard: Shard, scores: Iterable[Score]) -> None:
    """Replace the scores of a shard, or, on WriteError, leave the old ones untouched."""
    lines = [encode_record(number, asdict(score)) for number, score in enumerate(scores)]
    replace_file(scores_path(folder, shard), b"".join(lines))


def _scores_in(path: Path) -> Iterator[Score]:
    """Yield the scores of a file, not a torn last one; no file: none; DataError: a foreign line."""
    if not path.exists():
        return
    for number, values in enumerate(iterate(path)):
        try:
            score = convert(values, Score)
            if not all(abs(value) < LARGEST for value in score.metrics.values()):
                raise ValueError("a value that is no number")
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"foreign score ({path}, line {number + 1}: {error}): expected what this version "
                "writes. Delete the file and continue with `resume`"
            ) from error
        yield score
