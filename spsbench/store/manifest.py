"""What a run is: its experiment, its cells, and all that can change a number in it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import spsbench
from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.hardware.files import read_file
from spsbench.settings.cell import Cell
from spsbench.settings.records import SCHEMA
from spsbench.store.atomic import replace_file

# The shape of JSON that is read back: what must be a text, a number, a list, an object.

FEW = 40  # characters of a value in a message
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Is:
    """A plain value; `pattern` is for text, `least` for numbers."""

    kind: type
    pattern: str = ""
    least: float | None = None
    null: bool = False

    def wrong(self, value: Any, where: str) -> str | None:
        """What is wrong with `value`, in words; None: nothing."""
        if value is None and self.null:
            return None
        kinds = (int, float) if self.kind is float else self.kind
        fits = isinstance(value, kinds) and (self.kind is bool or not isinstance(value, bool))
        expected = WORDS[self.kind]
        if fits and self.pattern:
            fits, expected = re.fullmatch(self.pattern, value) is not None, f"{self.pattern!r}"
        if fits and self.least is not None:
            fits, expected = value >= self.least, f"{self.least:g} or more"
        return None if fits else said(where, value, expected)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one shape."""

    each: "Shape"

    def wrong(self, value: Any, where: str) -> str | None:
        """What is wrong with `value`, in words; None: nothing."""
        if not isinstance(value, list):
            return said(where, value, "a list")
        told = (self.each.wrong(one, f"{where}[{at}]") for at, one in enumerate(value))
        return next(filter(None, told), None)


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object; those of its fields that are named have a shape, `each` is that of all others."""

    fields: Mapping[str, "Shape"] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    each: "Shape | None" = None
    null: bool = False

    def wrong(self, value: Any, where: str) -> str | None:
        """What is wrong with `value`, in words; None: nothing."""
        if value is None and self.null:
            return None
        if not isinstance(value, dict):
            return said(where, value, "an object")
        if lacking := [name for name in self.needed if name not in value]:
            return f"{where} has no {lacking[0]}"
        shapes = ((name, one, self.fields.get(name, self.each)) for name, one in value.items())
        told = (
            shape.wrong(one, f"{where}.{name}") for name, one, shape in shapes if shape is not None
        )
        return next(filter(None, told), None)


Shape = Is | ListOf | ObjectOf


def said(where: str, value: Any, expected: str) -> str:
    """`segments[0] is 5, expected an object`."""
    return f"{where.removeprefix('.')} is {repr(value)[:FEW]}, expected {expected}"


NAME = "manifest.json"
ABSENT = "absent"
PART = ("task", "prompt_version", "cells", "limit", "samples", "repeats")  # read again of each part

TEXT, COUNT = Is(str), Is(int, least=0)
PROVENANCE = ObjectOf(
    {
        "hardware": ObjectOf(null=True),
        "git": ObjectOf({"commit": TEXT}, null=True),
        "versions": ObjectOf(null=True),
        "memory": ObjectOf(
            {"bandwidth": Is(float, least=1), "weights": ObjectOf(each=Is(float, least=0))},
            needed=("bandwidth", "weights"),
            null=True,
        ),
    }
)
SHAPE = ObjectOf(
    {
        "experiment": ObjectOf(
            {
                "title": TEXT,
                "parts": ListOf(
                    ObjectOf(
                        {
                            "task": TEXT,
                            "title": TEXT,
                            "prompt_version": TEXT,
                            "metrics": ListOf(TEXT),
                            "limit": Is(int, least=1, null=True),
                            "samples": COUNT,
                            "repeats": COUNT,
                            "cells": ListOf(TEXT),
                        },
                        needed=("title",),
                    )
                ),
                "samples": ObjectOf(each=ListOf(TEXT)),
                "prompts": ObjectOf(each=TEXT),
                "threads": Is(int, least=1, null=True),
                "paper": Is(bool),
            }
        ),
        "cells": ObjectOf(each=ObjectOf()),
        "fingerprint": ObjectOf(),
        "provenance": PROVENANCE,
        "segments": ListOf(
            ObjectOf(
                {
                    "shard": Is(str, pattern=r"\d+-of-\d+"),
                    "first": COUNT,
                    "records": COUNT,
                    "traces": ObjectOf(each=COUNT),
                    "started": TEXT,
                    "machine": TEXT,
                    "provenance": PROVENANCE,
                    "differences": ListOf(TEXT),
                },
                needed=("shard", "first"),
            )
        ),
        "created": TEXT,
        "tool": TEXT,
    }
)
"""What is read of a manifest; what is only kept may be anything."""


def now() -> str:
    """UTC in ISO format, for people: nothing is ordered or computed by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The first file of a run."""

    experiment: dict[str, Any]
    cells: dict[str, dict[str, Any]]  # Cell.id -> its fields
    fingerprint: dict[str, Any]  # flat: everything that can change a number
    provenance: dict[str, Any]  # of the first start
    # One a start: shard, first record number, hardware, time, and what differed, if it was forced.
    segments: tuple[dict[str, Any], ...] = ()
    created: str = field(default_factory=now)
    tool: str = spsbench.__version__
    schema: int = SCHEMA

    @property
    def samples(self) -> frozenset[str]:
        """Ids of all samples of its tasks; empty where an earlier version did not note them."""
        noted: dict[str, list[str]] = self.experiment.get("samples", {})
        return frozenset(name for names in noted.values() for name in names)

    @property
    def traces(self) -> dict[str, int]:
        """File of traces -> how many lines it had when a start that wrote it ended."""
        noted: dict[str, int] = {}
        for segment in self.segments:
            noted |= segment.get("traces", {})
        return noted

    def save(self, folder: Path) -> None:
        """Write `manifest.json`, whole or not at all.

        Raises:
            WriteError: it could not be written; the old one is untouched.
            ValueError: NaN or infinity in it.
        """
        text = json.dumps(asdict(self), allow_nan=False, indent=1)
        replace_file(folder / NAME, text.encode("ascii") + b"\n")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read the manifest of a run.

        Raises:
            MissingError: there is none.
            DataError: it cannot be read, or is of a newer schema.
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
        """The parts of the experiment as `Part.described` wrote them.

        Raises:
            DataError: one lacks what its task is made of again.
        """
        found: list[dict[str, Any]] = self.experiment.get("parts", [])
        for at, part in enumerate(found):
            lacking = [name for name in PART if name not in part]
            if lacking:
                raise DataError(
                    f"part {at} without {', '.join(lacking)} ({folder / NAME}): expected what "
                    "`sps` wrote. Read the run with the version that its manifest names"
                )
        return found

    def configurations(self, folder: Path) -> dict[str, Cell]:
        """The cells of the run in their order, by the ids under which it keeps them.

        Raises:
            DataError: they are not what this version writes.
        """
        try:
            return {name: Cell.from_json(values, name) for name, values in self.cells.items()}
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(
                f"foreign cell ({folder}: {error}): expected the fields that this version writes. "
                "Read the run with the version that its manifest names"
            ) from error

    @classmethod
    def _of(cls, values: Any, path: Path) -> "Manifest":
        if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
            raise ValueError("no schema number")
        if not 1 <= values["schema"] <= SCHEMA:
            raise DataError(
                f"run of schema {values['schema']} ({path}, written by spsbench "
                f"{values.get('tool')}): expected schema {SCHEMA} or older. Read it with that "
                "version"
            )
        wrong = {f.name for f in fields(cls)} ^ values.keys()
        if wrong:
            raise ValueError(f"missing or unknown: {', '.join(sorted(wrong))}")
        if told := SHAPE.wrong(values, ""):
            raise ValueError(told)
        return cls(**{**values, "segments": tuple(values["segments"])})


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The fields in which two fingerprints differ: `field: <mine>, there <theirs>`."""
    lines = []
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = _shown(mine, name), _shown(theirs, name)
        if here != there:
            lines.append(f"{name}: {here}, there {there}")
    return lines


def refuse_differences(
    mine: Manifest,
    theirs: Manifest,
    folder: Path,
    todo: str = "Give this one another folder, or start over with --overwrite",
) -> None:
    """Check that `mine` may go on in the run that `theirs` describes.

    Raises:
        MismatchError: it may not; names every field that differs.
    """
    if lines := differences(mine.fingerprint, theirs.fingerprint):
        raise MismatchError.of(
            f"another configuration ({folder}): expected the one that the run was started with. "
            f"{todo}",
            lines,
        )


def _shown(fingerprint: Mapping[str, Any], name: str) -> str:
    if name not in fingerprint:
        return ABSENT
    return json.dumps(fingerprint[name], sort_keys=True, allow_nan=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
