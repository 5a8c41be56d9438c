"""The prompts of a finished run, made again from its manifest: no record keeps them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.benchmark.jobs import Answers, Rooms, digest_of_ids, prompt_ids, samples_of, uncut
from spsbench.errors import DataError, MismatchError
from spsbench.models.folder import local_folder
from spsbench.models.tokenizers import reads_clock
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import TaskPart
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record
from spsbench.settings.task import Sample
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records, records
from spsbench.untrusted import path_above


class RunPrompts:
    """Prompt of each record, made again by its task, at the time that the run's prompts tell."""

    def __init__(
        self, manifest: Manifest, cells: dict[str, Cell], models: Rooms, folder: Path
    ) -> None:
        self._models: Rooms = lambda cell: replace(models(cell), clock=manifest.created)
        self._samples: dict[tuple[str, str], Sample] = {}  # (cell, sample)
        self._answers: dict[str, Answers] = {}  # by cell
        self._folder = folder
        self._digests = manifest.prompt_ids
        self._clocks = {
            placed.record.key: placed.start.clock
            for placed in placed_records(folder)
            if placed.start.clock is not None
        }
        for described in manifest.parts:
            cells_of_part = tuple(cells[name] for name in described["cells"] if name in cells)
            if cells_of_part:
                self._read(described, cells_of_part)

    def _read(self, described: dict[str, Any], cells: tuple[Cell, ...]) -> None:
        """Draw again the samples of a part that the manifest `described`, and keep them by cell.

        Answers are kept for later turns. MismatchError: as `_check`.
        """
        part = TaskPart.from_described(described, {cell.id: cell for cell in cells}, self._folder)
        self._check(part)
        samples = samples_of(part, self._models)
        answers = Answers(samples, records(self._folder) if any(s.after for s in samples) else ())
        for cell in cells:
            self._answers[cell.id] = answers
            self._samples |= {(cell.id, sample.id): sample for sample in samples}

    def _check(self, part: TaskPart) -> None:
        """Raise MismatchError for prompts that are not the run's: a verdict would say nothing.

        They are those whose tokens have another digest than the run's, or of a chat template that
        writes the time, if the run has no digest. Without a digest others pass.
        """
        for cell in {(c.target, c.chat, c.system): c for c in part.cells}.values():
            models, digest = self._models(cell), self._digests.get(cell.id)
            if digest is None and cell.chat and reads_clock(models.tokenizer):
                raise MismatchError(
                    f"a chat template that writes the time ({cell.target}): expected a run "
                    f"that keeps a digest of its prompts, unlike {self._folder}. Run it again"
                )
            if digest not in (None, digest_of_ids(models, cell, uncut(part))):
                raise MismatchError(
                    f"other prompts ({part.spec}, {cell.target}): expected the tokens that "
                    f"{self._folder} was made from. Restore the model's tokenizer and chat "
                    "template, and the version of transformers, or run it again"
                )

    def __call__(self, cell: Cell, record: Record) -> list[int]:
        """Return the tokens of a generation.

        Raises:
            DataError: the record has no sample in the task, or another prompt.
        """
        sample = self._samples.get((record.cell, record.sample))
        if sample is None:
            raise DataError(f"no sample {record.sample} of cell {record.cell}: expected the run's")
        before = self._answers[cell.id].before(record.cell, sample, record.repeat)
        models = self._models(cell)
        models = replace(models, clock=self._clocks.get(record.key, models.clock))
        ids = prompt_ids(models, cell, sample, before)
        if len(ids) != record.prompt_tokens:
            raise DataError(
                f"the prompt of {record.sample} has {len(ids)} tokens: expected the "
                f"{record.prompt_tokens} of its record. Is this the run's tokenizer?"
            )
        return ids


def relocate_models(cell: Cell, run: Path) -> Cell:
    """Return a cell; a model not here is sought by its relative path in each folder above `run`.

    Not found, it stays as it is. SpsError: as `local_folder`, so for each GGUF file not here.
    """

    def read_back(model: ModelSpec | None) -> ModelSpec | None:
        folder = path_above(run, model.id) if model and local_folder(model.id) is None else None
        return replace(model, id=str(folder)) if model and folder else model

    return cell.but(target=read_back(cell.target), draft=read_back(cell.draft))
