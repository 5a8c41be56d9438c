"""What a run is: all that can change a number in it, as one flat object."""

from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.experiment import Experiment, Part
from spsbench.results import SCHEMA, Cell, ModelRef, Spec
from spsbench.store.provenance import hash_file, hash_files

LIBRARIES = ("torch", "transformers")


def fingerprint(experiment: Experiment, folders: Mapping[ModelRef, Path]) -> dict[str, Any]:
    """Field -> value, for runs to be compared by; `folders` are those of all models.

    Cells are listed field by field with all values that occur, so that a difference can be read.

    Raises:
        SpsError: a model's file cannot be read.
    """
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "seed": experiment.seed,
        "warmup": experiment.warmup,
        "threads": experiment.threads,
    }
    for name in LIBRARIES:
        found[f"version.{name}"] = ".".join(version(name).split(".")[:2])
    for number, part in enumerate(experiment.parts):
        found |= {f"part{number}.{name}": value for name, value in _of_part(part).items()}
    shapes = {ref for c in experiment.cells if c.random_weights for ref in (c.target, c.draft)}
    for ref, folder in folders.items():
        files = (
            {"config.json": hash_file(folder / "config.json")}
            if ref in shapes
            else hash_files(folder)
        )
        found |= {f"files.{_text(ref)}.{name}": digest for name, digest in files.items()}
    return found


def _of_part(part: Part) -> dict[str, Any]:
    values = part.described()
    for field in fields(Cell):
        seen = [_text(getattr(cell, field.name)) for cell in part.cells]
        values[f"cells.{field.name}"] = list({repr(value): value for value in seen}.values())
    return values


def _text(value: Any) -> Any:
    if isinstance(value, ModelRef):
        return value.id if value.revision is None else f"{value.id}@{value.revision}"
    if isinstance(value, Spec):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
