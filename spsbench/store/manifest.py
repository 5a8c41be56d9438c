"""The manifest of a run: experiment, cells, fingerprint and provenance, with a schema check."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.hardware.files import read_file
from spsbench.settings.cell import Cell
from spsbench.settings.records import SCHEMA
from spsbench.store.atomic import replace_file
from spsbench.version import __version__

NAME = "manifest.json"
ABSENT = "absent"
FEW = 40  # characters of a value in a message
PART = (
    "task",
    "prompt_version",
    "cells",
    "limit",
    "samples",
    "repeats",
)  # read back of each part


def now() -> str:
    """Return UTC in ISO format, for people: no code orders or computes by the time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a run, the first file written."""

    experiment: dict[str, Any]
    cells: dict[str, dict[str, Any]]  # Cell.id -> its fields
    fingerprint: dict[str, Any]  # flat: everything that can change a number
    provenance: dict[str, Any]  # of the first start
    # One a start: shard, first record number, hardware, time, and forced differences.
    segments: tuple[dict[str, Any], ...] = ()
    created: str = field(default_factory=now)
    tool: str = __version__
    schema: int = SCHEMA

    @property
    def samples(self) -> frozenset[str]:
        """Return ids of all samples of its tasks; empty if it plans none."""
        noted: dict[str, list[str]] = self.experiment.get("samples", {})
        return frozenset(name for names in noted.values() for name in names)

    @property
    def prompt_ids(self) -> dict[str, str]:
        """Return cell -> digest of the tokens of its prompts; empty if there are none."""
        return dict(self.experiment.get("prompt_ids", {}))

    @property
    def traces(self) -> dict[str, int]:
        """Return file of traces -> its lines at the end of the start that wrote the file."""
        noted: dict[str, int] = {}
        for segment in self.segments:
            noted |= segment.get("traces", {})
        return noted

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
        text = json.dumps(asdict(self), allow_nan=False, indent=1)
        replace_file(folder / NAME, text.encode("ascii") + b"\n")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read the manifest of a run.

        Raises:
            MissingError: there is no manifest.
            DataError: the manifest cannot be read, or has another schema.
        """
        path = folder / NAME
        try:
            return cls._of(json.loads(read_file(path), parse_constant=_refuse), path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingError(
                f"no run ({folder}): expected {NAME} in it. Check the folder"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise DataError(
                f"unreadable manifest ({path}: {reason}): expected what `sps` wrote. "
                "Restore the file from a copy, or start anew"
            ) from error

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

    @classmethod
    def _of(cls, values: Any, path: Path) -> "Manifest":
        if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
            raise ValueError("no schema number")
        if values["schema"] != SCHEMA:
            raise DataError(
                f"run of schema {values['schema']} ({path}, written by spsbench "
                f"{str(values.get('tool'))[:FEW]}): expected schema {SCHEMA}. Read it with that "
                "version, or make the run anew"
            )
        from spsbench.store.shapes import ManifestShape, check_shape  # imports msgspec

        check_shape(values, ManifestShape)
        return cls(**{**values, "segments": tuple(values["segments"])})


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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
