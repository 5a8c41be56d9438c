"""Programs that misbehave without malice, and the verdict that each must have within its limit."""

from spsbench.tasks.verdicts import ProgramVerdict

# Whether memory, time or the interpreter gives out first is the machine's affair; it must not pass.
BOTTOMLESS = "import sys; sys.setrecursionlimit(10 ** 9)\nf = lambda x: f([0] * 10_000)\nf(0)"
TRAPS = {
    "endless loop": ("while True: pass", ProgramVerdict.TIMED_OUT),
    "endless sleep": ("import time; time.sleep(600)", ProgramVerdict.TIMED_OUT),
    "ignored signals": (
        "import signal\nfor n in set(signal.valid_signals()) - {9, 19}:\n"
        "    signal.signal(n, signal.SIG_IGN)\n"
        "while True: pass",
        ProgramVerdict.TIMED_OUT,
    ),
    "blocked signals": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: pass",
        ProgramVerdict.TIMED_OUT,
    ),
    "handled limit": (
        "import signal\nsignal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass",
        ProgramVerdict.TIMED_OUT,
    ),
    "caught everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ProgramVerdict.TIMED_OUT,
    ),
    "stopped itself": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        ProgramVerdict.TIMED_OUT,
    ),
    "regular expression": ("import re; re.match('(a+)+b', 'a' * 60)", ProgramVerdict.TIMED_OUT),
    "huge number": ("x = 7 ** 10 ** 8; str(x + 1)", ProgramVerdict.TIMED_OUT),
    "busy threads": (
        "import hashlib, threading\n"
        "def work():\n    while True: hashlib.sha256(bytes(1 << 22))\n"
        "for _ in range(3): threading.Thread(target=work).start()\nwork()",
        ProgramVerdict.TIMED_OUT,
    ),
    "deep recursion": ("def f(): return f()\nf()", ProgramVerdict.FAILED),
    "nested source": ("x = " + "(" * 5000 + ")" * 5000, ProgramVerdict.FAILED),
    "long sum": ("x = " + "+".join(["1"] * 200_000), ProgramVerdict.FAILED),
    "memory": ("x = []\nwhile True: x.append(bytes(1 << 24))", ProgramVerdict.OUT_OF_MEMORY),
    "fork bomb": ("import os\nwhile True: os.fork()", ProgramVerdict.FAILED),
    "thread bomb": (
        "import threading, time\n"
        "for _ in range(10_000): threading.Thread(target=time.sleep, args=(60,)).start()",
        ProgramVerdict.FAILED,
    ),
    "output": ("while True: print('x' * 10_000)", ProgramVerdict.OUTPUT_LIMIT),
    "output to all": (
        "import os\nwhile True:\n    for fd in range(12):\n"
        "        try: os.write(fd, b'x' * 4096)\n        except OSError: pass",
        ProgramVerdict.OUTPUT_LIMIT,
    ),
    "closed everything": ("import os; os.closerange(0, 64)", ProgramVerdict.ENDED_EARLY),
    "right answer, early end": (
        "import os\nassert 1 + 1 == 2\nos._exit(0)",
        ProgramVerdict.ENDED_EARLY,
    ),
    "crash": ("import ctypes; ctypes.string_at(0)", ProgramVerdict.ENDED_EARLY),
    "abort": ("import os; os.abort()", ProgramVerdict.ENDED_EARLY),
    "killed itself": ("import os; os.kill(os.getpid(), 9)", ProgramVerdict.ENDED_EARLY),
    "exit": ("import sys; sys.exit(0)", ProgramVerdict.FAILED),
    "standard input": ("input()", ProgramVerdict.FAILED),
    "missing import": ("import numpy", ProgramVerdict.IMPORT_MISSING),
    "syntax": ("def f(:", ProgramVerdict.FAILED),
    "NUL": ("x = 1\0", ProgramVerdict.FAILED),
    "half a surrogate pair": ("x = '\ud800'", ProgramVerdict.FAILED),
    "mixed indentation": ("if 1:\n\tx = 1\n        y = 2", ProgramVerdict.FAILED),
    "five megabytes": ("x = '" + "x" * (5 << 20) + "'", ProgramVerdict.PASSED),
    "an exception that lies": (
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E",
        ProgramVerdict.FAILED,
    ),
    "an endless exception": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        ProgramVerdict.TIMED_OUT,
    ),
    "a large exception": ("raise ValueError('x' * (1 << 26))", ProgramVerdict.FAILED),
    "an exception of many lines": (
        "raise ValueError('a\\nb passed\\n' * 9)",
        ProgramVerdict.FAILED,
    ),
    "unprintable output": ("print('\\ud800')", ProgramVerdict.PASSED),
    "threads left behind": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        ProgramVerdict.PASSED,
    ),
    "asyncio": ("import asyncio; asyncio.run(asyncio.sleep(0.01))", ProgramVerdict.PASSED),
}
