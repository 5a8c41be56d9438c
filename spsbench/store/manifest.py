"""The manifest of a run: experiment, cells, fingerprint, starts and their provenance."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.foreign import read_json
from spsbench.settings.cell import Cell
from spsbench.settings.records import SCHEMA
from spsbench.store.atomic import replace_file
from spsbench.version import __version__

NAME = "manifest.json"
ABSENT = "absent"
FEW = 40  # characters of a value in a message
PART = ("task", "prompt_version", "cells", "limit", "samples", "repeats")  # read back of each part

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class GitShape(Struct):
    """The state of the sources."""

    commit: str = ""


class MemoryShape(Struct):
    """The measured memory of a machine."""

    bandwidth: Annotated[float, Meta(ge=1)]
    weights: dict[str, Annotated[float, Meta(ge=0)]]


class ProvenanceShape(Struct):
    """Where numbers come from."""

    hardware: dict[str, Any] | None = None
    git: GitShape | None = None
    versions: dict[str, Any] | None = None
    memory: MemoryShape | None = None


class PartShape(Struct):
    """A part of an experiment."""

    title: str
    task: str = ""
    prompt_version: str = ""
    metrics: list[str] = []
    limit: Positive | None = None
    sample_seed: Count | None = None
    samples: Count = 0
    repeats: Count = 0
    cells: list[str] = []


class ExperimentShape(Struct):
    """The experiment as the user gave it."""

    title: str = ""
    parts: list[PartShape] = []
    samples: dict[str, list[str]] = {}
    prompts: dict[str, str] = {}
    prompt_ids: dict[str, str] = {}
    threads: Positive | None = None
    paper: bool = False


class SegmentShape(Struct):
    """One start."""

    shard: Annotated[str, Meta(pattern=r"^\d+-of-\d+\Z")]
    first: Count
    started: str = ""
    clock: str = ""
    machine: str = ""
    provenance: ProvenanceShape | None = None


def now() -> str:
    """Return UTC in ISO format, for people: no code orders or computes by the time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest of a run, written with its first record; each start adds its segment."""

    experiment: dict[str, Any]
    cells: dict[str, dict[str, Any]]  # Cell.id -> its fields
    fingerprint: dict[str, Any]  # flat: everything that can change a number
    provenance: dict[str, Any]  # of the first start
    # One a start: shard, number of its first record, time, provenance and machine.
    segments: tuple[dict[str, Any], ...] = ()
    created: str = field(default_factory=now)
    tool: str = __version__
    schema: int = SCHEMA

    @property
    def samples(self) -> frozenset[str]:
        """Return ids of all samples of its tasks; empty if it plans none."""
        samples: dict[str, list[str]] = self.experiment.get("samples", {})
        return frozenset(name for names in samples.values() for name in names)

    @property
    def prompt_ids(self) -> dict[str, str]:
        """Return cell -> digest of the tokens of its prompts; empty if there are none."""
        return dict(self.experiment.get("prompt_ids", {}))

    def start_of(self, shard: str, number: int, machine: str | None) -> int:
        """Return the segment of line `number` of a shard: the last start before the line.

        Raises:
            DataError: no segment.
        """
        for index in range(len(self.segments) - 1, -1, -1):
            start = self.segments[index]
            is_of_line = start["shard"] == shard and start.get("machine") == machine
            if is_of_line and start["first"] <= number:
                return index
        raise DataError(
            f"record of no segment (shard {shard}, line {number + 1}): expected its start in the "
            "manifest. Restore the manifest from a copy, or start anew"
        )

    @property
    def clock(self) -> datetime:
        """Return the time that the run's chat templates are told, in whichever start."""
        return self.clock_of({})

    def clock_of(self, segment: Mapping[str, Any]) -> datetime:
        """Return the same of a start; those merged from other runs have their own.

        Raises:
            DataError: no time in ISO format.
        """
        moment = segment.get("clock", self.created)
        try:
            return datetime.fromisoformat(moment)
        except ValueError as error:
            raise DataError(
                f"no time ({NAME}: {moment[:FEW]!r}): expected when the run was created, in ISO "
                "format. Restore the file from a copy"
            ) from error

    def save(self, folder: Path) -> None:
        """Write `manifest.json` atomically.

        Raises:
            WriteError: the file could not be written; the old file is untouched.
            ValueError: NaN or infinity in the manifest.
        """
        text = json.dumps(to_builtins(self), allow_nan=False, indent=1)
        replace_file(folder / NAME, text.encode("ascii") + b"\n")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read the manifest of a run.

        Raises:
            MissingError: there is no manifest.
            DataError: the manifest cannot be read, or has another schema.
        """
        path = folder / NAME
        if not path.exists():
            raise MissingError(f"no run ({folder}): expected {NAME} in it. Check the folder")
        values = read_json(path, "the manifest of a run")
        schema = values.get("schema", SCHEMA) if isinstance(values, dict) else SCHEMA
        if schema != SCHEMA:
            raise DataError(
                f"run of schema {str(schema)[:FEW]} ({path}, written by spsbench "
                f"{str(values.get('tool'))[:FEW]}): expected schema {SCHEMA}. Read it with that "
                "version, or make the run anew"
            )
        try:
            manifest = convert(values, cls)
            convert(manifest.experiment, ExperimentShape)
            convert([manifest.provenance], list[ProvenanceShape])
            convert(manifest.segments, list[SegmentShape])
        except ValidationError as error:
            raise DataError(
                f"unreadable manifest ({path}: {error}): expected what `sps` wrote. "
                "Restore the file from a copy, or start anew"
            ) from error
        if any(segment.get("differences") for segment in manifest.segments):
            raise DataError(
                f"run that went on under another configuration ({path}): expected one. Read it "
                f"with spsbench {manifest.tool[:FEW]}, or make the run anew"
            )
        return manifest

    def parts(self, folder: Path) -> list[dict[str, Any]]:
        """Return the parts of the experiment as `Part.described` wrote them.

        Raises:
            DataError: a part lacks a field needed to rebuild its task.
        """
        parts: list[dict[str, Any]] = self.experiment.get("parts", [])
        for at, part in enumerate(parts):
            lacking = [name for name in PART if name not in part]
            if lacking:
                raise DataError(
                    f"part {at} without {', '.join(lacking)} ({folder / NAME}): expected what "
                    "`sps` wrote. Read the run with the version that its manifest names"
                )
        return parts

    def configurations(self, folder: Path) -> dict[str, Cell]:
        """Return id -> cell of the run, in order.

        Raises:
            DataError: the cells do not match this version's format, or are not those of their ids.
        """
        try:
            cells = {name: Cell.from_json(values) for name, values in self.cells.items()}
            for name, cell in cells.items():
                if name != cell.id:
                    raise ValueError(f"{name[:FEW]} has the fields of {cell.id}")
            return cells
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(
                f"foreign cell ({folder}: {error}): expected the fields that this version writes. "
                "Read the run with the version that its manifest names"
            ) from error


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the differing fields of two fingerprints: `field: <mine>, there <theirs>`."""
    lines = []
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = _displayed(mine, name), _displayed(theirs, name)
        if here != there:
            lines.append(f"{name}: {here}, there {there}")
    return lines


def refuse_differences(
    mine: Manifest,
    theirs: Manifest,
    folder: Path,
    todo: str = "Give this one another folder, or start over with `overwrite`",
) -> None:
    """Check that `mine` may continue the run of `theirs`.

    Raises:
        MismatchError: the fingerprints differ; names every differing field.
    """
    if lines := differences(mine.fingerprint, theirs.fingerprint):
        raise MismatchError.of(
            f"another configuration ({folder}): expected the one that the run was started with. "
            f"{todo}",
            lines,
        )


def _displayed(fingerprint: Mapping[str, Any], name: str) -> str:
    if name not in fingerprint:
        return ABSENT
    return json.dumps(fingerprint[name], sort_keys=True, allow_nan=False)
