"""Try the wheel under several Pythons: each generates a text and runs a tenth of the suite.

    make release && .venv/bin/python recipes/wheels.py python3.11 python3.12 python3.13

The newest wheel and sdist of dist/ are taken. TORCH_INDEX names another index for torch. Prints a
line for each Python, and exits with 1 if one failed; its output is in build/wheels/NAME.log.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
SHARE = ("-p", "tests.share", "--share", "0.1", "--seed", "1")
PARALLEL = ("--numprocesses", "auto", "--maxprocesses", "8", "--dist", "worksteal")


def newest(pattern: str) -> Path:
    """Return the newest file of dist/ by `pattern`; SystemExit: there is none."""
    files = sorted((ROOT / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)
    if not files:
        sys.exit(f"no {pattern} in {ROOT / 'dist'}: expected a release. Run make release")
    return files[-1]


def try_wheel(python: str, wheel: Path, sources: Path) -> str:
    """Return "" if a text and the tests came out under `python`, else the command that failed.

    `sources` is the unpacked sdist, in whose tree the tests run.
    """
    name = Path(python).name
    folder = WORK / name
    empty = WORK / f"{name}-empty"
    empty.mkdir(parents=True, exist_ok=True)
    index = ["--index-url", url] if (url := os.environ.get("TORCH_INDEX")) else []
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
    pip += ["--constraint", str(ROOT / "constraints.txt")]
    tests = [str(folder / "bin/python"), "-m", "pytest", "-q", *PARALLEL, *SHARE]
    generate = [str(folder / "bin/sps"), "generate", "def fibonacci(n):", "--max-new-tokens", "16"]
    commands: Sequence[tuple[list[str], Path]] = (
        ([python, "-m", "venv", "--clear", str(folder)], ROOT),
        ([*pip, *index, "torch"], ROOT),
        ([*pip, str(wheel)], ROOT),
        (generate, empty),
        ([*pip, f"{wheel}[dev,gguf]"], ROOT),
        (tests, sources),
    )
    with (WORK / f"{name}.log").open("w") as log:
        for command, where in commands:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            if subprocess.run(command, cwd=where, stdout=log, stderr=log).returncode:
                return " ".join(command)
    return ""


def main(pythons: Sequence[str]) -> int:
    """Try the wheel under each of `pythons`; return 1 if one failed, or none is named."""
    wheel, sdist = newest("*.whl"), newest("*.tar.gz")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK, filter="data")
    failed = not pythons
    for python in pythons:
        start = monotonic()
        error = try_wheel(python, wheel, WORK / sdist.name.removesuffix(".tar.gz"))
        minutes = (monotonic() - start) / 60
        print(f"{python}: {f'failed: {error}' if error else 'passed'} ({minutes:.1f} min)")
        failed |= bool(error)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
