"""What a run is: all that can change a number in it, as one flat object."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import SCHEMA
from spsbench.spec import Spec
from spsbench.store.provenance import digest, hash_file, hash_files

LIBRARIES = ("torch", "transformers")


def fingerprint(experiment: Experiment, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
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
    for ref, folder in folders.items():
        files = (
            {"config.json": hash_file(folder / "config.json")} if ref.random else hash_files(folder)
        )
        found |= {f"files.{ref}.{name}": digest for name, digest in files.items()}
    return found


def digests(found: Mapping[str, Any], cells: Iterable[Cell]) -> dict[str, str]:
    """Model -> one digest of its files, weights among them, from a fingerprint that has them."""
    models = dict.fromkeys(model for cell in cells for model in cell.models.all)
    of_files = {
        str(model): {
            name.removeprefix(prefix): value
            for name, value in found.items()
            if name.startswith(prefix)
        }
        for model in models
        for prefix in (f"files.{model}.",)
    }
    return {name: digest(files) for name, files in of_files.items() if files}


def _of_part(part: Part) -> dict[str, Any]:
    values = part.described()
    for name in bare(part.cells[0]):
        seen = [bare(cell).get(name) for cell in part.cells]
        values[f"cells.{name}"] = list({repr(value): value for value in seen}.values())
    return values


def bare(cell: Cell) -> dict[str, Any]:
    """The fields of a cell in words that are compared and shown; those of a model one by one."""
    found: dict[str, Any] = {}
    for name, values in (("target", cell.models.target), ("draft", cell.models.draft)):
        for field in fields(ModelSpec):
            found[f"{name}.{field.name}"] = _text(getattr(values, field.name, None))
    for record in (cell.method, cell.sampling, cell.work):
        found |= {field.name: _text(getattr(record, field.name)) for field in fields(record)}
    # a run of before these were there had none
    return {name: value for name, value in found.items() if value or name not in ("chat", "system")}


def _text(value: Any) -> Any:
    if isinstance(value, Spec):
        return f"{value} {value.source}".rstrip()
    return list(value) if isinstance(value, tuple) else value
