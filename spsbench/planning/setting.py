"""What the costs of a table depend on, in plain values that can be compared."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from spsbench.engines.session.engine_config import choice_of
from spsbench.models.cache import Loaded
from spsbench.models.folder import local_folder
from spsbench.settings.cell import Cell
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import digest, hardware, hash_files, versions

LIBRARIES = ("spsbench", "torch", "transformers")


def setting_of(pairs: Iterable[tuple[Cell, Loaded]]) -> dict[str, Any]:
    """Machine, versions, threads, warp and models of some cells that share their target.

    A model in a folder has a digest of its files; one from the hub has its revision.
    """
    listed = list(pairs)
    cell, loaded = listed[0]
    models = {"target": described(cell.models.target, loaded.target)}
    drafts = {
        str(draft): (draft, made.draft)
        for each, made in listed
        if (draft := each.models.draft) is not None
    }
    models |= {name: described(*draft) for name, draft in drafts.items()}
    known = versions()
    return {
        "hardware": hardware(),
        "versions": {name: known[name] for name in LIBRARIES},
        "threads": torch.get_num_threads(),
        "sampling": cell.sampling.recorded_warp,
        "vocabulary": loaded.vocab_size,
        "models": models,
    }


def described(spec: ModelSpec, model: Any) -> dict[str, Any]:
    """A model as its times depend on it."""
    chosen = None if model is None else choice_of(model)
    folder = None if spec.random else local_folder(spec.id)
    return {
        "id": spec.id,
        "revision": spec.revision,
        "weights": spec.weights,
        "files": None if folder is None else digest(hash_files(folder)),
        "engine": str(spec.engine),
        "chosen": None if chosen is None else str(chosen),
        "device": spec.device,
        "dtype": spec.dtype if model is None else str(model.dtype).removeprefix("torch."),
        "attention": spec.attention,
    }


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any], below: str = "") -> list[str]:
    """Names of what is not alike in two settings, each as `models.target.dtype`."""
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differing(one, other, f"{below}{name}.")
        elif one != other:
            found.append(below + name)
    return found
