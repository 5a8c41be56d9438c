"""Compile the C files beside this one for this machine, when they are first needed, and keep them.

A C compiler is not required: without one, torch does this work, more slowly.

    python -m spsbench.extensions.cpu.kernels.native     compiles now, as `make` does
"""

import atexit
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from spsbench.hardware.files import cache_home, own_folder, sync
from spsbench.messages import announce_if_slow

log = logging.getLogger(__name__)

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
MARCH = "SPSBENCH_MARCH"
"""Environment variable: the processor that kernels are compiled for, as `-march` takes it."""
FLAGS = (
    *("-O3", f"-march={os.environ.get(MARCH) or 'native'}", "-ffp-contract=fast"),
    *("-fopenmp", "-fPIC", "-Wno-psabi"),
)
KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
SECONDS = 300  # timeout of the compiler, which needs a few, and many more on a busy machine

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
ARGUMENTS: dict[str, tuple[list[Any], Any]] = {
    "pack": ([_pointer] * 2 + [_size] * 4 + [_int], None),
    "tiled": ([], _int),
    "dots": ([], _int),
    "laws": ([_pointer] * 2 + [_size] * 3 + [_pointer, _int], None),
}
"""Argument and result types of the functions that are no steps of passes; see the C files."""


class NoKernelError(Exception):
    """No compiled kernels are available; the message says why."""


@functools.cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """Return the C function `name` of `ARGUMENTS` for a dtype; kernels are compiled if need be.

    NoKernelError: there is none for this dtype, or on this machine.
    """
    if dtype not in KINDS:
        raise NoKernelError(f"kernels take float32 and bfloat16, not {dtype}")
    kernels = load_kernels()
    if isinstance(kernels, str):
        raise NoKernelError(kernels)
    function = getattr(kernels, f"{name}_{KINDS[dtype]}")
    function.argtypes, function.restype = ARGUMENTS[name]
    called: Callable[..., Any] = function
    return called


def missing(dtype: torch.dtype) -> str | None:
    """Return why there are no kernels for `dtype`, else None."""
    try:
        kernel("pack", dtype)
    except NoKernelError as error:
        return str(error)
    return None


@functools.cache
def load_kernels() -> "ctypes.CDLL | str":
    """Return all kernels, compiled or from the cache; or why there are none, logged once."""
    kernels = _find_kernels()
    if isinstance(kernels, str):
        log.info(f"note: {kernels}: slower code of torch runs. Install a C compiler (gcc)")
    return kernels


def _find_kernels() -> "ctypes.CDLL | str":
    """Return the kernels, cached or compiled, if need be in a temporary folder; or why not."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return "no C compiler (gcc, cc or $CC) was found"
    try:
        key, cache_folder = _digest(compiler), folder()
        try:
            return _load_library(compiler, cache_folder or _temporary_folder(), key)
        except OSError:  # a full disk, or a place from which nothing may be run
            if cache_folder is None:
                raise
            return _load_library(compiler, _temporary_folder(), key)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the kernels could not be compiled: {_first_error(error)}"


def _load_library(compiler: str, place: Path, key: str) -> ctypes.CDLL:
    """Load the library with this key from `place`, compiled if no undamaged one is there.

    With a compiler that needs LLVM's OpenMP, KMP_BLOCKTIME becomes 0 unless it is set.
    """
    path = _whole(place, key) or _compile(compiler, place, key)
    if needs_llvm_openmp(compiler):
        os.environ.setdefault("KMP_BLOCKTIME", "0")  # threads in a loop would keep torch's out
    return ctypes.CDLL(str(path))


def _whole(place: Path, key: str) -> Path | None:
    """Return the library with this key whose content is as it was written; remove damaged ones.

    A library's name ends in the digest of its content. A file that was cut off must not be loaded:
    a page that is not there ends the process with SIGBUS.
    """
    for path in place.glob(f"{key}_*.so"):
        with suppress(OSError):  # another process has removed it
            if path.name == _name(key, path.read_bytes()):
                return path
            path.unlink()
    return None


def _name(key: str, content: bytes) -> str:
    return f"{key}_{hashlib.sha256(content).hexdigest()[:16]}.so"


def folder() -> Path | None:
    """Return where compiled kernels are kept, this user's alone; None: there is no such place."""
    return own_folder("kernels")


@functools.cache
def _temporary_folder() -> Path:
    """Return a temporary folder of this process, which is removed when the process ends."""
    directory = tempfile.TemporaryDirectory(prefix="spsbench-")
    atexit.register(directory.cleanup)
    return Path(directory.name)


def _digest(compiler: str) -> str:
    """Return a digest of all inputs of compilation and the processor: machines may share a home."""
    parts = [
        *(path.read_bytes() for path in (*SOURCES, *HEADERS)),
        "\0".join([compiler, *FLAGS, *_libraries()]).encode(),
        _version(compiler),
        processor(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@functools.cache
def _version(compiler: str) -> bytes:
    """Return the output of the compiler's `--version`."""
    command = [*compiler.split(), "--version"]
    return subprocess.run(command, capture_output=True, timeout=SECONDS).stdout


def needs_llvm_openmp(compiler: str) -> bool:
    """Return whether the compiler's OpenMP is not torch's, GNU's on Linux: Clang needs LLVM's."""
    return sys.platform == "linux" and b"clang" in _version(compiler)


def processor() -> bytes:
    """Return lines of /proc/cpuinfo on processors and abilities; without it, Python's name."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    kinds = (b"model name", b"flags", b"Features")
    return b"\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _compile(compiler: str, place: Path, key: str) -> Path:
    """Compile the library into `place`, synced to disk, and return its path, named by `_name`.

    Slow compilation is announced. OSError, SubprocessError: it fails, and nothing is left there.
    """
    temporary = tempfile.TemporaryDirectory(prefix="compiled-", dir=place)
    once = ", once" if place == folder() else f", and {cache_home()} cannot keep them"
    with announce_if_slow(f"compiling kernels for this processor{once}"), temporary as build_folder:
        draft, start = Path(build_folder, "kernels.so"), [*compiler.split(), *FLAGS]
        parts = [(source, Path(build_folder, f"{source.stem}.o")) for source in SOURCES]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a compiler of its own
            list(pool.map(lambda p: _call([*start, "-c", str(p[0]), "-o", str(p[1])]), parts))
        objects = [str(part) for _, part in parts]
        _call([*start, "-shared", *objects, "-o", str(draft), *_libraries()])
        path = place / _name(key, draft.read_bytes())
        sync(draft)
        draft.replace(path)
    sync(place)
    return path


def _call(command: list[str]) -> None:
    """Run a compiler, whose messages are English: `_first_error` looks for their words."""
    environment = os.environ | {"LC_ALL": "C"}
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, env=environment)


def _libraries() -> list[str]:
    """Return linker arguments for torch's OpenMP: two pools of threads would wait on each other."""
    home = Path(torch.__file__).parent
    openmp = [*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")]
    unneeded = ["-Wl,--as-needed"] if sys.platform == "linux" else []  # a second OpenMP
    return [*unneeded, *map(str, openmp[:1])]


def _first_error(error: Exception) -> str:
    """Return the error in one line; of a compiler, its first line with `error`, else its last."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    lines = [line.strip() for line in error.stderr.decode(errors="replace").splitlines()]
    messages = [line for line in lines if "error" in line] or lines[-1:]
    return messages[0] if messages else f"{error.cmd[0]} ended with exit code {error.returncode}"


if __name__ == "__main__":  # after an installation, so that no first load waits for a compiler
    reason = load_kernels()
    print(f"no kernels: {reason}" if isinstance(reason, str) else "kernels compiled")
