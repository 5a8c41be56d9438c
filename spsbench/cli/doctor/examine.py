"""What this machine and this installation can do: all that `sps doctor` shows."""

import os
import platform
import shutil
from pathlib import Path
from typing import Any

from spsbench.hardware.crowd import BUSY, at_work
from spsbench.hardware.disks import allowed
from spsbench.hardware.environment import (
    PACKAGES,
    bad_variables,
    bad_versions,
    cpu_name,
    package_version,
    shadows,
    usable_cores,
)
from spsbench.hardware.sizes import folder_size
from spsbench.models.gguf.unpack import blocks_in_words
from spsbench.settings.models import BUNDLED, FETCHED, fetched_folder

LOOKED = 0.3  # seconds


def environment() -> dict[str, Any]:
    """Python, platform, processor, threads, package versions and devices, ready for JSON.

    Imports torch, to ask for threads and devices.
    """
    import torch

    from spsbench.models.devices import devices

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        **{name.replace("-", "_"): package_version(name) for name in PACKAGES},
        "devices": [
            {"name": d.name, "model": d.model, "bytes": d.total, "free": d.free} for d in devices()
        ],
    }


def compiled_kernels() -> dict[str, Any]:
    """Whether the engine `fast` has its C kernels here, or why not; how they read weights."""
    reading: dict[str, str] = {}
    unit = False
    try:
        from spsbench.engines.kernels.native import KINDS, library
        from spsbench.engines.packing.prefetch import choose
        from spsbench.engines.packing.tiles import has_unit

        found = library()
        if not isinstance(found, str):
            reading = {kind: str(choose(dtype)) for dtype, kind in KINDS.items()}
            unit = has_unit()
    except Exception as error:  # a broken torch: said elsewhere
        found = type(error).__name__
    why = found if isinstance(found, str) else ""
    return {"compiled": not why, "why": why, "reading": reading, "unit": unit}


def examine() -> dict[str, Any]:
    """All that `sps doctor` shows, ready for JSON: the machine, the hub, models, sandbox, warnings.

    Takes up to 3 s when the hub does not answer. No token is in it, only whether one is set.
    """
    from spsbench.models import hub
    from spsbench.models.hub import cache_folder
    from spsbench.sandbox.choice import survey
    from spsbench.sandbox.levels import ProgramLimits

    hub.quieten()
    others = at_work(LOOKED)
    warnings = [*bad_variables(), *shadows(Path.cwd()), *bad_versions()]
    try:
        known = environment()
    except Exception as error:  # a broken installation is what this is for
        warnings.append(f"torch cannot be used: {type(error).__name__}: {error}")
        known = {"python": platform.python_version(), "platform": platform.platform()}
    if others >= BUSY:
        warnings.append(
            f"{others:.1f} others are at work on {os.cpu_count()} processors: too busy to measure "
            "on. Wait for them, or read times under load as such"
        )
    cache = cache_folder()
    home = nearest(cache)
    if not home.is_dir() or not os.access(home, os.W_OK):
        warnings.append(f"the model cache cannot be written ({cache}): set HF_HOME to your own")
    return {
        **known,
        "at_work": round(others, 2),
        "disk": {"folder": str(cache), "free": shutil.disk_usage(home).free},
        "hub": {
            "endpoint": hub.endpoint(),
            "reachable": hub.reachable(),
            "token_set": bool(os.environ.get("HF_TOKEN")),
        },
        "kernels": compiled_kernels(),
        "packings": packings(),
        "sandbox": [[found.name, found.holds, found.words] for found in survey(ProgramLimits())],
        "bundled": {name: folder_size(folder) for name, folder in BUNDLED.items()},
        "fetched": {name: folder_size(fetched_folder(name)) for name in FETCHED},
        "blocks": {name: blocks_in_words(fetched_folder(name)) for name in FETCHED},
        "cached": cached_models(cache),
        "warnings": warnings,
    }


def packings() -> dict[str, int]:
    """How many models' weights are kept laid out, their bytes, and what is allowed."""
    try:
        from spsbench.engines.packings import sizes

        found = sizes()
    except Exception:  # a broken torch: said elsewhere
        found = []
    return {"models": len(found), "bytes": sum(found), "allowed": allowed()}


def nearest(folder: Path) -> Path:
    """`folder`, or the first of its parents that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def cached_models(cache: Path) -> dict[str, int]:
    """Hub id -> bytes, of the models in the hub's cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(cache).repos
    except (CacheNotFound, OSError, ValueError):
        return {}
    models = ((repo.repo_id, repo.size_on_disk) for repo in repos if repo.repo_type == "model")
    return dict(sorted(models))
