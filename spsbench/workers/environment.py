"""The environment of a worker: what must be as on the driver, and what is only noted of a machine.

A worker of another environment refuses to work, and names every field that differs.
"""

import hashlib
import platform
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from spsbench.errors import MismatchError
from spsbench.hardware.environment import PACKAGES, package_version
from spsbench.models.devices import card_of
from spsbench.settings.models import ModelSpec
from spsbench.store.manifest import differences
from spsbench.store.provenance import hash_file, model_files, provenance
from spsbench.store.starts import Provenance


def describe_worker(folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Return field -> version or digest: Python, libraries, this package, each file of the models.

    SpsError: a file in `folders`, one folder a model, cannot be read.
    """
    python = platform.python_version_tuple()
    values: dict[str, Any] = {"python": ".".join(python[:2]), "spsbench.code": code()}
    values |= {f"version.{name}": _release(package_version(name)) for name in PACKAGES}
    return values | model_files(folders)


@cache
def code() -> str:
    """Return a digest of this package's source, however it was installed."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {hash_file(path)}\n".encode())
    return digest.hexdigest()[:16]


def worker_provenance(devices: Iterable[str], workers: int = 1) -> Provenance:
    """Return the provenance of this machine, with threads, workers if several, and a card if any.

    Of `devices`, on which models run, the last card is named. `workers` run on it at once: they
    share its memory, so times depend on how many there are.
    """
    record = provenance()
    record.threads = torch.get_num_threads()
    if workers > 1:
        record.hardware["workers"] = workers
    for card in filter(None, map(card_of, devices)):
        record.hardware["device"] = card
    return record


def _release(version: str | None) -> str | None:
    """Return a version without its local part: a CPU build and a CUDA build are of one release."""
    return None if version is None else version.partition("+")[0]


def check_same_environment(expected: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise MismatchError with each field that differs, or that driver or worker alone has."""
    if mismatches := differences(expected, here):
        raise MismatchError.of(
            f"another environment (worker on {socket.gethostname()}): expected what the driver "
            "has. Install the same there, and put the same models in its cache",
            mismatches,
            " (driver, there)",
        )
