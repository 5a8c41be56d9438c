"""Workers as the measuring side sees them: started, asked, frozen while others run, stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
THREADS = "OMP_NUM_THREADS"  # libraries that find it set do not choose for themselves


class EngineError(RuntimeError):
    """A worker that failed or died; the message says why."""


@dataclass(frozen=True)
class Engine:
    """A column of the comparison: what a worker must load, and which interpreter has it."""

    name: str
    spec: str  # module:class[:argument]
    python: str = sys.executable
    converts: bool = False  # wants the models in a form of its own
    weights: str = ""  # int8 or int4; empty: in the dtype of the measurement


@dataclass
class Process:
    """A worker process.

    It is frozen (SIGSTOP) whenever it has nothing to answer, so that its idle threads cost the
    others nothing.
    """

    engine: Engine
    log: Path
    threads: int | None = None
    _process: subprocess.Popen[str] | None = None

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """One request.

        Raises:
            EngineError: it failed, or the process died.
        """
        process = self._process or self._start()
        if process.stdin is None or process.stdout is None:
            raise EngineError(f"{self.engine.name}: its pipes are gone")
        os.kill(process.pid, signal.SIGCONT)
        try:
            process.stdin.write(json.dumps({"do": do, **values}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = process.wait()
            raise EngineError(f"{self.engine.name} died at {do!r} with status {status}: {self.log}")
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.engine.name} at {do!r}: {answer['error']}")
        return answer

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def stop(self) -> None:
        """End the process; the next request would start another."""
        if self._process is not None:
            self._process.kill()  # also ends a stopped one
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [self.engine.python, "-m", "arena.worker", self.engine.spec],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(os.environ, self.threads),
            )
        return self._process


def environment(given: Mapping[str, str], threads: int | None = None) -> dict[str, str]:
    """A worker's variables: this repository's code first, no hub, threads only if asked for."""
    paths = [str(BENCHMARKS), str(BENCHMARKS.parent)]
    if given.get("PYTHONPATH"):
        paths.append(given["PYTHONPATH"])
    inherited = {name: value for name, value in given.items() if name != THREADS}
    return {
        **inherited,
        **({THREADS: str(threads)} if threads else {}),
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
