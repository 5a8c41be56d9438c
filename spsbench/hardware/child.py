"""Child processes that run what comes from outside (templates, grammars) within limits."""

import atexit
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from spsbench.hardware.files import in_words
from spsbench.messages import announce_if_slow

if TYPE_CHECKING:
    import subprocess

START_SECONDS = 120  # limit of processor time for the imports of a child

# A child imports first and then takes its limits, so that they bind its tasks only. All of them
# count what the child uses: on a machine where other work keeps it waiting, it may wait.
_CHILD = """
import json, resource, sys, threading
start = json.loads(sys.stdin.readline())
sys.path[:] = start["path"]
def limit(kind, value):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_CPU, start["seconds"])
exec(start["program"])
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit(resource.RLIMIT_AS, used + start["memory"])
threading.stack_size(start["stack"])
def work(task):
    try:
        result = answer(task)
    except MemoryError:
        result = {"error": "it needs too much memory"}
    except RecursionError:
        result = {"error": "it recurses without end"}
    except BaseException as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        result = {"error": lines[0][:300]}
    print(json.dumps(result), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    limit(resource.RLIMIT_CPU, int(spent.ru_utime + spent.ru_stime) + task["seconds"])
    thread = threading.Thread(target=work, args=[task])
    thread.start()
    thread.join()
"""


class Child:
    """A process that answers tasks one by one; it is kept, since its start takes time.

    `program` is Python source that defines `answer(task)`, which returns a dictionary for JSON. The
    child has `memory` bytes more than it needs to start, and answers on `stack` bytes of stack.
    """

    def __init__(self, program: str, memory: int = 512_000_000, stack: int = 4_000_000) -> None:
        self.program, self.memory, self.stack = program, memory, stack
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()
        atexit.register(self.close)

    def ask(self, task: Mapping[str, Any], seconds: int, step: str) -> dict[str, Any]:
        """Return the child's answer to `task`, or {"error": reason} where it fails or hits a limit.

        Starts a child if none runs; waits while another thread asks. `task` has values for JSON,
        sent with `seconds`, its limit of processor time. `step` is logged if the answer takes long.
        What is raised, or is no JSON object, is an error; a child is killed only if it ends, or is
        interrupted, before it answers: then the next call starts another. OSError: none starts.
        """
        with self._lock:
            if self._owner != os.getpid():  # a fork: the process is its parent's
                self._process, self._owner = None, os.getpid()
            line = ""
            try:
                with announce_if_slow(step):
                    process = self._process or self._start()
                    self._write(process, {**task, "seconds": seconds})
                    line = process.stdout.readline() if process.stdout is not None else ""
            finally:
                code = None if line.endswith("\n") else self._end()
        if code is not None:
            return {"error": self._reason(code, seconds)}
        try:
            answer = json.loads(line)
        except ValueError as error:
            return {"error": f"it printed what is no answer ({error})"}
        return answer if isinstance(answer, dict) else {"error": "it printed what is no answer"}

    def close(self) -> None:
        """Kill the child, unless it is another process's; the next task starts another one."""
        with self._lock:
            if self._owner == os.getpid():
                self._end()

    def _reason(self, code: int, seconds: int) -> str:
        """Return in words which limit exit `code` (-signal) shows: time, stack, memory; else it."""
        if code == -signal.SIGXCPU:
            return f"it takes more than {seconds} s of processor time"
        if code in (-signal.SIGSEGV, -signal.SIGBUS):
            return f"it nests deeper than a stack of {in_words(self.stack)}"
        if code in (-signal.SIGABRT, -signal.SIGKILL):
            return f"it needs more than {in_words(self.memory)} of memory"
        return f"its process ended without an answer (exit code {code})"

    def _start(self) -> "subprocess.Popen[str]":
        """Start, keep and return the child, sent its limits if it lives; OSError: none starts."""
        import subprocess

        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        start = {
            "path": [entry for entry in sys.path if entry],
            "program": self.program,
            "memory": self.memory,
            "stack": self.stack,
            "seconds": START_SECONDS,
        }
        self._write(process, start)
        return process

    def _write(self, process: "subprocess.Popen[str]", values: Mapping[str, Any]) -> None:
        if process.stdin is not None:
            with suppress(OSError):  # it is dead: its answer is missing too
                process.stdin.write(json.dumps(values) + "\n")
                process.stdin.flush()

    def _end(self) -> int | None:
        """Kill the child, close its pipes and return its exit code; None: there is no child."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return process.wait()
