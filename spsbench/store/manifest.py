"""The manifest of a run: experiment, cells and fingerprint. Written once, with the first record."""

import json
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.settings.cell import Cell
from spsbench.store.atomic import create_file
from spsbench.untrusted import cut, read_json
from spsbench.version import __version__

NAME = "manifest.json"
RUN_SCHEMA = 7  # the version of manifests and lines of logs
ABSENT = "absent"

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Moment = Annotated[datetime, Meta(tz=True)]


class PartShape(Struct):
    """The form of a part of an experiment, as `Part.described` gives it."""

    title: str
    task: str
    prompt_version: str
    metrics: list[str]
    limit: Positive | None
    samples: Count
    repeats: Count
    cells: list[str]
    sample_seed: Count | None = None


class ExperimentShape(Struct):
    """The form of an experiment, as `Experiment.described` gives it, and of its samples."""

    title: str = ""
    parts: list[PartShape] = []
    samples: dict[str, list[str]] = {}
    prompts: dict[str, str] = {}
    prompt_ids: dict[str, str] = {}
    threads: Positive | None = None
    paper: bool = False


def now() -> datetime:
    """Return UTC to the second, for people: no code orders or computes by the time."""
    return datetime.now(UTC).replace(microsecond=0)


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest of a run, which no start changes."""

    experiment: dict[str, Any]
    cells: dict[str, dict[str, Any]]  # Cell.id -> its fields
    fingerprint: dict[str, Any]  # flat: everything that can change a number
    created: Moment = field(default_factory=now)  # given to its chat templates
    tool: str = __version__
    schema: int = RUN_SCHEMA

    @property
    def samples(self) -> frozenset[str]:
        """Return ids of all samples of its tasks; empty if it plans none."""
        samples: dict[str, list[str]] = self.experiment.get("samples", {})
        return frozenset(name for names in samples.values() for name in names)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Return the parts of the experiment as `Part.described` wrote them."""
        return list(self.experiment.get("parts", ()))

    @property
    def prompt_ids(self) -> dict[str, str]:
        """Return cell -> digest of the tokens of its prompts; empty if there are none."""
        return dict(self.experiment.get("prompt_ids", {}))

    def write_once(self, folder: Path) -> "Manifest":
        """Write `manifest.json` if missing; return the one there. SpsError: another, or damaged."""
        values = to_builtins(self)
        text = json.dumps(values | {"crc": checksum(values)}, allow_nan=False, indent=1)
        if create_file(folder / NAME, text.encode("ascii") + b"\n"):
            return self
        theirs = Manifest.load(folder)
        refuse_differences(self, theirs, folder)
        return theirs

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read the manifest of a run; MissingError: none. DataError: damaged, or another schema."""
        path = folder / NAME
        try:
            values = read_json(path, "the manifest of a run")
        except MissingError as error:
            line = f"no run ({folder}): expected {NAME} in it. Check the folder"
            raise MissingError(line) from error
        schema = values.get("schema", RUN_SCHEMA) if isinstance(values, dict) else RUN_SCHEMA
        if schema != RUN_SCHEMA:
            raise DataError(
                f"run of schema {cut(schema)} ({path}, written by spsbench "
                f"{cut(values.get('tool'))}): expected schema {RUN_SCHEMA}. Convert one of schema "
                "6 with recipes/convert_runs.py of the sources, or make the run anew"
            )
        crc = values.pop("crc", None) if isinstance(values, dict) else None
        if crc is not None and crc != checksum(values):
            raise DataError(
                f"damaged manifest ({path}: another checksum): expected what sps wrote. "
                "Restore the file from a copy, or start anew"
            )
        try:
            manifest = convert(values, cls)
            convert(manifest.experiment, ExperimentShape)
        except ValidationError as error:
            raise DataError(
                f"unreadable manifest ({path}: {error}): expected what sps wrote. "
                "Restore the file from a copy, or start anew"
            ) from error
        return manifest

    def configurations(self, folder: Path) -> dict[str, Cell]:
        """Return id -> cell, in order; DataError, naming `folder`: fields of another version."""
        try:
            cells = {name: Cell.from_json(values) for name, values in self.cells.items()}
            for name, cell in cells.items():
                if name != cell.id:
                    raise ValueError(f"{cut(name)} has the fields of {cell.id}")
            return cells
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(
                f"foreign cell ({folder}: {error}): expected the fields that this version writes. "
                "Read the run with the version that its manifest names"
            ) from error


def checksum(values: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest's values, which earlier versions did not write."""
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the differing fields of two fingerprints, by name: `field: <mine>, there <theirs>`."""
    texts = [
        {name: json.dumps(x, sort_keys=True, allow_nan=False) for name, x in fingerprint.items()}
        for fingerprint in (mine, theirs)
    ]
    names = sorted(mine.keys() | theirs.keys())
    pairs = {name: [values.get(name, ABSENT) for values in texts] for name in names}
    return [f"{name}: {x}, there {other}" for name, (x, other) in pairs.items() if x != other]


def refuse_differences(
    mine: Manifest,
    theirs: Manifest,
    folder: Path,
    todo: str = "Give this one another folder, or start over with `overwrite`",
) -> None:
    """Raise MismatchError where fingerprints differ, with fields, `folder` and advice `todo`."""
    if lines := differences(mine.fingerprint, theirs.fingerprint):
        raise MismatchError.of(
            f"another configuration ({folder}): expected the one that the run was started with. "
            f"{todo}",
            lines,
        )
