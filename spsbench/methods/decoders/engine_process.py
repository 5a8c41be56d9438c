"""A decoder over an engine in a process of its own: what llama.cpp and OpenVINO GenAI share.

Their packages need other versions of libraries than this one, so that the process may be of another
interpreter: SPS_ENGINES_PYTHON names it. The process lives as long as this one and keeps its model.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import IO, Any, ClassVar, Self, cast

from torch import Tensor

from spsbench.errors import MissingError, UnavailableError, UsageError
from spsbench.loop.decoder import Decoder, DecoderContext, EnginePrompt, RefusedPromptError
from spsbench.loop.types import Limits, NoiseStream, Purpose, Round, Stop
from spsbench.messages import announce_if_slow
from spsbench.settings.cell import WARP, Cell, CellRequest

PYTHON = "SPS_ENGINES_PYTHON"
WORKER = Path(__file__).with_name("engine_worker.py")
LOOKUP = "lookup"  # a draft without a model
SECRET = ("SPS_API_KEY", "SPS_BASELINE_API_KEY", "HF_TOKEN")  # variables that no engine is given


class EngineProcess:
    """A running engine.

    `name` is the engine's in `engine_worker`, `options` are the keywords that it is loaded with,
    and `timeout` the seconds for the load, and for an answer.
    """

    def __init__(self, name: str, options: Mapping[str, Any], timeout: float) -> None:
        self._name, self._timeout = name, timeout
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self._left = b""
        python = os.environ.get(PYTHON) or sys.executable
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(WORKER), name, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={n: v for n, v in os.environ.items() if n not in SECRET},
                start_new_session=True,  # Ctrl-C is for this process, which finishes its text
            )
        except OSError as error:
            self._errors.close()
            raise MissingError(
                f"no interpreter {python} ({PYTHON}: {error.strerror}): expected one. Set it"
            ) from error
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        with announce_if_slow(f"loading {options['path']} in {name}"):
            answer = self._answer()
        if "error" in answer:
            self.close()
            raise MissingError(
                f"{name} cannot load {options['path']} ({python}: {answer['error']}): expected the "
                f"engine and its model. Install it, or name its interpreter in {PYTHON}"
            )
        self.version = str(answer["version"])

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer; RefusedPromptError: it is an error; UnavailableError: none came."""
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(request).encode() + b"\n")
            self._input.flush()
        answer = self._answer()
        if "error" in answer:
            raise RefusedPromptError(f"{self.version}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        """Wait for the next line of the process and return it, decoded from JSON.

        Where the process ends or is silent for the timeout, it is closed, and UnavailableError has
        the last line of its standard error.
        """
        until = time.monotonic() + self._timeout
        while b"\n" not in self._left:
            ready, _, _ = select.select([self._output], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._output.fileno(), 1 << 16) if ready else b""
            if not piece:
                self._errors.seek(0)
                lines = self._errors.read().decode(errors="replace").split("\n")
                spoken = [line.strip() for line in lines if line.strip()] or ["no message"]
                self.close()
                what = "ended" if ready else f"gave no answer within {self._timeout:g} s"
                raise UnavailableError(
                    f"{self._name} {what} ({spoken[-1][:200]}): expected an answer. Look at its "
                    "options, or raise timeout="
                )
            self._left += piece
        line, _, self._left = self._left.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill the process, close its pipes, and wait for its end."""
        self._process.kill()
        for pipe in (self._input, self._output, self._errors):
            with suppress(OSError):
                pipe.close()
        self._process.wait()


_RUNNING: dict[str, EngineProcess] = {}


def close_engines() -> None:
    """Close the engines that this process runs, and forget them."""
    while _RUNNING:
        _RUNNING.popitem()[1].close()


atexit.register(close_engines)


class EngineDecoder(Decoder):
    """An engine in a process of its own; ArS is the engine without its draft.

    Args:
        path: the target's file or folder, as the engine takes it.
        draft: `lookup`, or the draft model's file or folder; empty: none.
        window: tokens of the context, where the engine needs it.
        threads: 0 = as the engine chooses.
        timeout: seconds for the load, and for an answer.
    """

    engine: ClassVar[str]
    ranges: ClassVar = {"window": (1, 1 << 24), "threads": (0, 1024), "timeout": (1e-3, 1e6)}

    @classmethod
    def open(
        cls,
        context: DecoderContext,
        path: str,
        draft: str = LOOKUP,
        window: int = 2048,
        threads: int = 0,
        timeout: float = 600.0,
    ) -> Self:
        """Return a decoder over the process of these options, which is started if none runs.

        Options are those of the class; at K = 0 `draft` is not loaded. MissingError: interpreter,
        engine or model is missing or does not load; UnavailableError: the process ends, or is
        silent for `timeout`.
        """
        options = {
            "path": str(Path(path).expanduser()),
            "draft": draft if context.cell.k else "",
            "context": window,
            "threads": threads,
        }
        key = json.dumps([cls.engine, options, os.environ.get(PYTHON)])
        if key not in _RUNNING or _RUNNING[key]._process.poll() is not None:
            _RUNNING[key] = EngineProcess(cls.engine, options, timeout)
        return cls(context.cell, context.tokenizer, _RUNNING[key])

    @classmethod
    def check(cls, cell: CellRequest) -> None:
        """Raise MissingError: path or draft, at any K, not on disk; UsageError: no constant K."""
        args = dict(cell.decoder.args)
        for name in ("path", "draft"):
            value = str(args.get(name, LOOKUP))
            if value != LOOKUP and not Path(value).expanduser().exists():
                raise MissingError(
                    f"no {name} {value} (`decoder` {cls.engine}): expected a file or folder"
                )
        if cell.k is None:
            raise UsageError(f"`decoder` {cls.engine}: expected a constant K. Leave `schedule` out")

    def __init__(self, cell: Cell, tokenizer: Any, process: EngineProcess) -> None:
        self._cell, self._tokenizer, self._process = cell, tokenizer, process

    def __call__(
        self,
        prompt: EnginePrompt,
        *,
        limits: Limits,
        warp: Callable[[Tensor], Tensor],
        noise: NoiseStream,
        stop: Stop,
    ) -> Iterator[Round]:
        """Continue `prompt`; all rounds come, a block of tokens each, when the answer is whole."""
        cell = self._cell
        answer = self._process.ask(
            {name: getattr(cell, name) for name in WARP}
            | {
                "content": prompt.content,
                "ids": None if prompt.ids is None else list(prompt.ids),
                "tokens": limits.max_new_tokens,
                "k": cell.k,
                "seed": int(noise.round(0).uniform(Purpose.PLAIN, 1)[0] * 2**31),
                "stop": list(cell.stop),
                "ignore_eos": cell.ignore_eos,
            }
        )
        self.prompt_tokens = answer["prompt_tokens"]
        blocks = answer["blocks"]
        ends = [0.0, *(at for _, at, _ in blocks)]
        times = [end - before for before, end in pairwise(ends)]
        self.prefill_seconds = max(0.0, times[0] - median(times[1:] or times)) if times else 0.0
        here = self._tokenizer is not None
        for number, ((tokens, _, drafted), seconds) in enumerate(zip(blocks, times, strict=True)):
            last = number == len(blocks) - 1
            accepted = len(tokens) - 1 if drafted else 0
            tested = drafted if drafted < 0 else min(accepted + 1, drafted)
            yield Round(
                drafted,
                tested,
                min(accepted, drafted) if drafted > 0 else accepted,
                tokens,
                None,
                seconds - self.prefill_seconds * (number == 0),
                answer["finish"] if last else None,
                text=None if here else answer["text"] * last,
            )


class LlamaCppDecoder(EngineDecoder):
    """llama-cpp-python over a GGUF file; `window` is the context of its cache in tokens.

    A draft is its prompt lookup, of n-grams of two tokens, or another GGUF file drafting greedily;
    it keeps a drafted token where the target's own sample is the same. Penalties are off.
    """

    engine = "llamacpp"


class OpenVinoDecoder(EngineDecoder):
    """OpenVINO GenAI on the CPU, over an exported folder or a GGUF file; it chooses its window.

    A block of tokens that its streamer receives is a round. How many tokens were drafted for a
    round the pipeline does not tell, so that rates over drafted tokens are n/a.
    """

    engine = "openvino"
