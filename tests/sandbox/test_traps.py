"""Programs that do not simply end: each gets its verdict within the limit and a second."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.program import run
from spsbench.sandbox.verdict import WALL, Verdict

LIMITS = Limits(seconds=1.0, memory=512 << 20)
IN_TIME = LIMITS.cpu + 1.0

TRAPS = {
    "right": ("x = 1", Verdict.PASSED),
    "right and printing": ("print('fine')", Verdict.PASSED),
    "right with threads": (
        "import threading\nt = threading.Thread(target=len, args=('',))\nt.start(); t.join()",
        Verdict.PASSED,
    ),
    "right with asyncio": ("import asyncio\nasyncio.run(asyncio.sleep(0))", Verdict.PASSED),
    "right with scratch": ("open('a', 'w').write('x'); open('a').read()", Verdict.PASSED),
    "a thread left running": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()",
        Verdict.PASSED,
    ),
    "wrong": ("assert 1 == 2", Verdict.FAILED),
    "syntax": ("def f(:", Verdict.FAILED),
    "NUL": ("x = '\0'", Verdict.FAILED),
    "half a surrogate pair": ("x = '\ud800'", Verdict.FAILED),
    "tabs and spaces": ("if 1:\n\tx = 1\n        y = 1", Verdict.FAILED),
    "deep nesting": ("x = " + "(" * 100_000, Verdict.FAILED),
    "large": ("x = '" + "a" * 5_000_000 + "'\nassert False", Verdict.FAILED),
    "sys.exit": ("import sys; sys.exit(0)", Verdict.FAILED),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", Verdict.FAILED),
    "standard input": ("input()", Verdict.FAILED),
    "recursion": ("def f(): f()\nf()", Verdict.FAILED),
    "an error without words": (
        "class E(Exception):\n    def __str__(self): raise E\nraise E",
        Verdict.FAILED,
    ),
    "os._exit": ("import os; os._exit(0)", Verdict.ENDED_EARLY),
    "segfault": ("import ctypes; ctypes.string_at(0)", Verdict.ENDED_EARLY),
    "abort": ("import os; os.abort()", Verdict.ENDED_EARLY),
    "a forged last line": (
        'import os\nos.write(1, b\'\\nmark {"verdict": "passed"}\\n\'); os._exit(0)',
        Verdict.ENDED_EARLY,
    ),
    "its output closed": ("import os; os.close(1); os.close(2); os._exit(0)", Verdict.ENDED_EARLY),
    "memory": ("x = [0] * 10**9", Verdict.OUT_OF_MEMORY),
    "memory by and by": ("x = []\nwhile True: x.append(bytes(10**7))", Verdict.OUT_OF_MEMORY),
    "output": ("while True: print('x' * 10**6)", Verdict.OUTPUT_LIMIT),
    "output to the bare file": (
        "import os\nwhile True: os.write(2, b'\\x1b]52;c;x' * 10**4)",
        Verdict.OUTPUT_LIMIT,
    ),
    "no such module": ("import numpy", Verdict.IMPORT_MISSING),
}
ENDLESS = {
    "a loop": "while True: pass",
    "an ignored signal": (
        "import signal\nfor s in (14, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    ),
    "caught everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: 0"
    ),
    "sleep": "import time; time.sleep(99)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "closed output and sleep": "import os, time; os.close(1); os.close(2); time.sleep(99)",
    "a regular expression": "import re; re.match('(a*)*b', 'a' * 99)",
    "a large number": "10 ** 10 ** 8",
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_the_verdict_is_right(name: str, level: Level) -> None:
    program, verdict = TRAPS[name]
    outcome = run(program, level, LIMITS)
    assert outcome.verdict is verdict, outcome
    assert outcome.detail.isascii()
    assert len(outcome.detail) <= 300


@pytest.mark.parametrize("name", ENDLESS)
def test_the_endless_end_in_time(name: str, level: Level) -> None:
    began = time.monotonic()
    outcome = run(ENDLESS[name], level, LIMITS)
    assert outcome.verdict is Verdict.TIMED_OUT, outcome
    assert time.monotonic() - began < IN_TIME + 1.0  # what a busy machine adds
    if name == "sleep":
        assert outcome.detail == WALL


def test_nothing_is_left_behind(level: Level, tmp_path: Path) -> None:
    before = left()
    for program in (ENDLESS["fork bomb"], ENDLESS["sleep"], TRAPS["memory"][0]):
        run(f"open('left', 'w').write('x')\nimport os\n{program}", level, LIMITS)
    assert left() - before == set()


def left() -> set[str]:
    """Scratch folders of this process, and runners that it or nobody is the parent of."""
    found = {str(p) for p in Path(tempfile.gettempdir()).glob(f"sps-program-{os.getpid()}-*")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it ended meanwhile
        if b"runner.py" in command and parent in ("1", str(os.getpid())):
            found.add(process.name)
    return found


def test_the_caller_is_not_seen(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a secret")
    outcome = run(
        "import os; print(dict(os.environ)); assert 'HF_TOKEN' not in os.environ", level, LIMITS
    )
    assert outcome.verdict is Verdict.PASSED, outcome


def test_sets_have_the_same_order_every_time(level: Level) -> None:
    program = "print(list({str(i) for i in range(50)}))"
    first, second = (run(program, level, LIMITS).output.splitlines()[0] for _ in range(2))
    assert first == second
