"""A process that runs one engine: a JSON line asks, a JSON line answers.

    python -m arena.worker MODULE:CLASS[:ARGUMENT]

Answers go to the first standard output; what libraries print goes to standard error.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from arena.contenders.contender import Setting

WARM_TOKENS = 8
PR_SET_PDEATHSIG = 1  # Linux


def memory() -> dict[str, int]:
    """Bytes that this process holds now, and held at most since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = dict(line.split(":", 1) for line in lines)
    names = {"rss": "VmRSS", "peak": "VmHWM", "anonymous": "RssAnon"}
    return {name: 1024 * int(table[key].split()[0]) for name, key in names.items()}


def reset_peak() -> None:
    """Forget the peak so far."""
    Path("/proc/self/clear_refs").write_text("5")


def import_models(setting: dict[str, Any]) -> None:
    """Import what transformers would import while it loads, so that no load time has it."""
    if "transformers" not in sys.modules:
        return
    for folder in (setting["target"], setting["draft"]):
        kind = json.loads((Path(folder) / "config.json").read_text())["model_type"]
        with suppress(ImportError):  # then loading imports it
            importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")


def read_files(setting: dict[str, Any]) -> None:
    """Have the models' files in the system's cache, so that none pays for being the first."""
    for folder in (setting["target"], setting["draft"]):
        for path in Path(folder).glob("*.safetensors"):
            with path.open("rb", buffering=0) as file:
                while file.readinto(bytearray(2**24)):
                    pass


class Worker:
    """The requests, one method each."""

    def __init__(self, spec: str) -> None:
        module, name, *argument = spec.split(":", 2)
        self._module = importlib.import_module(module)
        self._contender = getattr(self._module, name)(*argument)

    def convert(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Write the models in the engine's own form, unless they are there."""
        self._module.convert(Setting(**setting))
        return {}

    def load(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Load and say what it took."""
        import_models(setting)
        read_files(setting)
        before = memory()["rss"]
        reset_peak()
        began = time.perf_counter()
        self._contender.load(Setting(**setting))
        seconds = time.perf_counter() - began
        arms = list(self._contender.arms())
        return {"seconds": seconds, "before": before, "arms": arms, **memory()}

    def warm(self, prompt: list[int]) -> dict[str, Any]:
        """Let the engine settle and run every arm once, uncounted."""
        self._contender.settle()
        for arm in self._contender.arms():
            self._contender.generate(arm, prompt, WARM_TOKENS)
        return {"notes": self._contender.notes()}

    def generate(self, arm: str, prompt: list[int], tokens: int) -> dict[str, Any]:
        """One turn of one arm."""
        turn = self._contender.generate(arm, prompt, tokens)
        return {**turn.to_json(), **memory()}

    def read(self, cores: int) -> dict[str, Any]:
        """Bytes per second; only of the reader of memory."""
        return dict(self._contender.read(cores))

    def steps(self, prompt: list[int], repeats: int) -> dict[str, Any]:
        """Single passes; what they and the reads beside them take is in no peak."""
        times = dict(self._contender.steps(prompt, repeats))
        reset_peak()
        return times


def serve(spec: str) -> None:
    """Answer until the input ends, or whoever asks is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even while it is stopped
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not answer for us
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or Worker(spec)
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # the other engines go on without this one
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
