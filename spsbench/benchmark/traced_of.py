"""What the texts of a trace are of, and what drafts along them: compared before any is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.planning.forecast.traces import Head
from spsbench.settings.cell import Cell
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import digest, hash_file, hash_files

TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "vocab.", "merges.")


def head_of(plain: Cell, folders: Mapping[ModelSpec, Path]) -> Head:
    """What the texts of an ArS cell are of."""
    target = plain.models.target
    return Head(
        {
            **{f"sampling.{n}": value for n, value in plain.sampling.recorded_warp.items()},
            **{f"target.{name}": value for name, value in model_identity(target, folders).items()},
        }
    )


def draft_identity(cell: Cell, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """What drafts."""
    drafter = cell.method.drafter
    found: dict[str, Any] = {"drafter": f"{drafter} {drafter.source}".rstrip()}
    if cell.models.draft is not None:
        found |= model_identity(cell.models.draft, folders)
    return found


def model_identity(model: ModelSpec, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """A model by its name, revision and files; its tokenizer apart, so that it is told apart."""
    folder = folders[model]
    found: dict[str, Any] = {"id": model.id, "revision": model.revision, "dtype": model.dtype}
    if model.random:
        return found | {"weights": model.weights, "config": hash_file(folder / "config.json")[:16]}
    if model.quantised is not None:
        found["weights"] = model.weights
    files = hash_files(folder)
    words = {name: value for name, value in files.items() if name.startswith(TOKENIZER)}
    rest = {name: value for name, value in files.items() if name not in words}
    return found | {"files": digest(rest)[:16], "tokenizer": digest(words)[:16]}
