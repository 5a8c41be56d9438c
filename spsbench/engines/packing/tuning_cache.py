"""What was measured on this machine, in the user's cache, so that it is measured once.

It lies beside the compiled kernels, under a digest of what it depends on: another processor, number
of cores, kernel or torch measures anew. Where nothing can be kept, nothing is recalled.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from spsbench.engines.kernels.native import folder, library, processor
from spsbench.hardware.cache_home import beside


def recall(name: str) -> Any:
    """What `keep` was given, here and for this machine; None: nothing."""
    path = place()
    return None if path is None else _read(path).get(name)


def keep(name: str, value: Any) -> None:
    """Keep a JSON value; another process may at the same time: one of the two is then lost."""
    path = place()
    if path is None:
        return
    with suppress(OSError), beside(path) as draft:  # else it will be measured again
        draft.write_text(json.dumps(_read(path) | {name: value}, indent=1), encoding="utf-8")


def place() -> Path | None:
    """The file for this machine; None: there is no place of this user's alone."""
    where, kernels = folder(), library()
    if where is None:
        return None
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count()
    name = "none" if isinstance(kernels, str) else Path(kernels._name).name
    parts = [processor(), f"{cores} {name} {torch.__version__}".encode()]
    return where / f"{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # none yet, or damaged
        return {}
    return found if isinstance(found, dict) else {}
