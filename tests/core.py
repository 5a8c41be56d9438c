"""Run the core's tests without extensions, in a copy of the tree: `python -m tests.core`.

The copy has neither `spsbench/extensions` nor `tests/extensions`; it stands first on PYTHONPATH, so
that processes of the tests import it too. `--share` and `--seed` are those of `tests.share`; other
arguments are pytest's. Tests that have the mark `needs_fast` are left out: they name the engine
`fast`, or look at files that the copy lacks.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns(".*", "__pycache__", "extensions", "work", "site", "build", "dist")
MARKS = "not needs_fast and not slow and not portable and not browser and not cluster and not live"
PARALLEL = ("--numprocesses", "auto", "--maxprocesses", "8", "--dist", "worksteal", "-p", "no:sps")


def main() -> int:
    words = sys.argv[1:]
    if not any(word.startswith("--seed") for word in words):
        words += [f"--seed={random.randrange(10**6)}"]
    print(f'again: make test-core CORE="{" ".join(words)}"', flush=True)
    with tempfile.TemporaryDirectory(prefix="spsbench-core-") as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "pytest", *PARALLEL, "-m", MARKS, "-p", "tests.share"]
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.run([*command, *words], cwd=copy, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
