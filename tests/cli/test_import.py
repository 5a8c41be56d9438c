"""`sps --help` and `sps list` answer at once: they never load torch."""

import resource
import subprocess
import sys

import pytest

from tests.golden.make import GOLDEN

HEAVY = (
    "torch",
    "transformers",
    "huggingface_hub",
    "numpy",
    "spsbench.methods.build",
    "spsbench.loop.types",
)
PROGRAM = """
import sys
from spsbench.cli.main import main
sys.argv = ["sps", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list",),
        ("check", "--help"),
        ("generate", "hi", "-k", "99"),
        ("generate", "hi", "--target", "./no/such/folder"),
    ],
)
def test_nothing_heavy_is_imported(arguments):
    began = children_seconds()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    seconds = children_seconds() - began  # of the processor: other work does not count
    assert done.returncode in (0, 2, 66)
    loaded = done.stderr.splitlines()[-1].split()
    assert "spsbench.cli.main" in loaded
    assert not set(HEAVY) & set(loaded)
    assert seconds < 1


def test_a_report_loads_no_tensors():
    """Nor `evaluate`: what was scored is kept beside the records."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "report", str(GOLDEN / "1"), "--terms", "vllm"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not loaded & {"torch", "transformers", "evaluate", "datasets", "matplotlib"}
