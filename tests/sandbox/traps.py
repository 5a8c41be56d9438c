"""Programs that misbehave without malice, and the verdict that each must have within its limit."""

from spsbench.sandbox.verdict import Verdict

# Whether memory, time or the interpreter gives out first is the machine's affair; it must not pass.
BOTTOMLESS = "import sys; sys.setrecursionlimit(10 ** 9)\nf = lambda x: f([0] * 10_000)\nf(0)"
TRAPS = {
    "endless loop": ("while True: pass", Verdict.TIMED_OUT),
    "endless sleep": ("import time; time.sleep(600)", Verdict.TIMED_OUT),
    "ignored signals": (
        "import signal\nfor n in set(signal.valid_signals()) - {9, 19}:\n"
        "    signal.signal(n, signal.SIG_IGN)\n"
        "while True: pass",
        Verdict.TIMED_OUT,
    ),
    "blocked signals": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: pass",
        Verdict.TIMED_OUT,
    ),
    "handled limit": (
        "import signal\nsignal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass",
        Verdict.TIMED_OUT,
    ),
    "caught everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        Verdict.TIMED_OUT,
    ),
    "stopped itself": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        Verdict.TIMED_OUT,
    ),
    "regular expression": ("import re; re.match('(a+)+b', 'a' * 60)", Verdict.TIMED_OUT),
    "huge number": ("x = 7 ** 10 ** 8; str(x + 1)", Verdict.TIMED_OUT),
    "busy threads": (
        "import hashlib, threading\n"
        "def work():\n    while True: hashlib.sha256(bytes(1 << 22))\n"
        "for _ in range(3): threading.Thread(target=work).start()\nwork()",
        Verdict.TIMED_OUT,
    ),
    "deep recursion": ("def f(): return f()\nf()", Verdict.FAILED),
    "nested source": ("x = " + "(" * 5000 + ")" * 5000, Verdict.FAILED),
    "long sum": ("x = " + "+".join(["1"] * 200_000), Verdict.FAILED),
    "memory": ("x = []\nwhile True: x.append(bytes(1 << 24))", Verdict.OUT_OF_MEMORY),
    "fork bomb": ("import os\nwhile True: os.fork()", Verdict.FAILED),
    "thread bomb": (
        "import threading, time\n"
        "for _ in range(10_000): threading.Thread(target=time.sleep, args=(60,)).start()",
        Verdict.FAILED,
    ),
    "output": ("while True: print('x' * 10_000)", Verdict.OUTPUT_LIMIT),
    "output to all": (
        "import os\nwhile True:\n    for fd in range(12):\n"
        "        try: os.write(fd, b'x' * 4096)\n        except OSError: pass",
        Verdict.OUTPUT_LIMIT,
    ),
    "closed everything": ("import os; os.closerange(0, 64)", Verdict.ENDED_EARLY),
    "right answer, early end": ("import os\nassert 1 + 1 == 2\nos._exit(0)", Verdict.ENDED_EARLY),
    "crash": ("import ctypes; ctypes.string_at(0)", Verdict.ENDED_EARLY),
    "abort": ("import os; os.abort()", Verdict.ENDED_EARLY),
    "killed itself": ("import os; os.kill(os.getpid(), 9)", Verdict.ENDED_EARLY),
    "exit": ("import sys; sys.exit(0)", Verdict.FAILED),
    "standard input": ("input()", Verdict.FAILED),
    "missing import": ("import numpy", Verdict.IMPORT_MISSING),
    "syntax": ("def f(:", Verdict.FAILED),
    "NUL": ("x = 1\0", Verdict.FAILED),
    "half a surrogate pair": ("x = '\ud800'", Verdict.FAILED),
    "mixed indentation": ("if 1:\n\tx = 1\n        y = 2", Verdict.FAILED),
    "five megabytes": ("x = '" + "x" * (5 << 20) + "'", Verdict.PASSED),
    "an exception that lies": (
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E",
        Verdict.FAILED,
    ),
    "an endless exception": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        Verdict.TIMED_OUT,
    ),
    "a large exception": ("raise ValueError('x' * (1 << 26))", Verdict.FAILED),
    "an exception of many lines": ("raise ValueError('a\\nb passed\\n' * 9)", Verdict.FAILED),
    "unprintable output": ("print('\\ud800')", Verdict.PASSED),
    "threads left behind": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        Verdict.PASSED,
    ),
    "asyncio": ("import asyncio; asyncio.run(asyncio.sleep(0.01))", Verdict.PASSED),
}
