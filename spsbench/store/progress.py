"""How much of a run is there: the generations its manifest plans, and those its logs hold."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spsbench.settings.cell import Cell
from spsbench.settings.experiment import repeats_of
from spsbench.settings.records import Key
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.store.run_folder import belongs, record_logs, unbegun


class Progress(NamedTuple):
    """The generations of a run, made and planned; recorded failures count as made."""

    done: int
    planned: Mapping[str, int]  # cell -> generations
    resumable: bool = True  # a shard that has started lacks some

    @property
    def total(self) -> int:
        """Return the planned generations of all cells."""
        return sum(self.planned.values())

    @property
    def whole(self) -> bool:
        """Return whether nothing is missing."""
        return self.done >= self.total

    def __str__(self) -> str:
        return f"{self.done} of {self.total} generations"

    @property
    def remark(self) -> str:
        """Return how many generations are made, failed ones too, and how to go on; empty: all."""
        if self.whole:
            return ""
        if not self.resumable:
            return f"Incomplete: {self}. The others belong to shards that have not started."
        return (
            f"Incomplete: {self}. Continue with: sps bench ... --resume, and the options of its "
            "start."
        )


def progress_in(
    folder: Path, manifest: Manifest, cells: Mapping[str, Cell], recorded: Collection[Key]
) -> Progress | None:
    """Return the progress of the run in `folder`, by its records' keys; None: it plans none.

    `cells` are those of its manifest; its logs tell whether a shard that has begun lacks some.
    """
    planned = dict.fromkeys(_planned_keys(manifest, cells))
    if not planned:
        return None
    missing = [key for key in planned if key not in recorded]
    shards = unbegun(record_logs(folder))
    return Progress(
        len(planned) - len(missing),
        Counter(cell for cell, *_ in planned),
        not all(any(belongs(key, shard) for shard in shards) for key in missing),
    )


def progress_of(folder: Path) -> Progress | None:
    """Return the progress of the run in `folder`; None: its manifest plans no generations."""
    manifest = Manifest.load(folder)
    recorded = {record.key for record in records(folder)}
    return progress_in(folder, manifest, manifest.configurations(folder), recorded)


def _planned_keys(manifest: Manifest, cells: Mapping[str, Cell]) -> Iterator[Key]:
    """Yield (cell, sample, repeat) of all that the parts plan for `cells`, some more than once."""
    for part in manifest.parts:
        samples = manifest.experiment.get("samples", {}).get(part["task"], ())[: part["limit"]]
        for name in part["cells"]:
            if name in cells:
                repeats = range(repeats_of(cells[name], part["samples"], part["repeats"]))
                yield from ((name, sample, repeat) for sample in samples for repeat in repeats)
