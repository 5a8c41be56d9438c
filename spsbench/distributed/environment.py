"""What must be the same on every machine of a run, and what is only noted of each."""

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import spsbench
from spsbench.hardware.environment import PACKAGES, package_version
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import hash_file, hash_files, provenance


def environment(folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Field -> value, flat: Python, this package's code, its libraries, every file of the models.

    Raises:
        SpsError: a model's file cannot be read.
    """
    python = platform.python_version_tuple()
    found: dict[str, Any] = {"python": ".".join(python[:2]), "spsbench.code": code()}
    found |= {f"version.{name}": _release(package_version(name)) for name in PACKAGES}
    for model, folder in folders.items():
        files = (
            {"config.json": hash_file(folder / "config.json")}
            if model.random
            else hash_files(folder)
        )
        found |= {f"files.{model}.{name}": value for name, value in files.items()}
    return found


@cache
def code() -> str:
    """A digest of this package's source, however it was installed."""
    root, found = Path(spsbench.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)} {hash_file(path)}\n".encode())
    return found.hexdigest()[:16]


def machine(workers: int, device: str) -> dict[str, Any]:
    """The provenance of this machine as a worker's, ready for JSON.

    Args:
        workers: on it at once: they share its memory, so times depend on how many there are.
        device: that models run on.
    """
    found = provenance()
    shared: dict[str, Any] = {"workers": workers} if workers > 1 else {}
    if device.startswith("cuda"):
        shared["device"] = torch.cuda.get_device_name()
    return found | {
        "hardware": found["hardware"] | shared,
        "threads": torch.get_num_threads(),
    }


def _release(version: str | None) -> str | None:
    """Without a local part: a CPU build and a CUDA build are of one release."""
    return None if version is None else version.partition("+")[0]
