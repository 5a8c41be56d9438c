"""How long a prompt is read before its first token: ours, transformers, llama.cpp and OpenVINO.

    .venv/bin/python benchmarks/prompt.py --peers-python PEERS/bin/python            # all dtypes
    .venv/bin/python benchmarks/prompt.py --dtypes int8 --lengths 64 512             # these, anew

Each engine is a process that holds SmolLM2-135M (`--target smollm2`) in one dtype: float32,
bfloat16, or bfloat16 with weights of 8 or 4 bits (llama.cpp's Q8_0 and Q4_0, OpenVINO's symmetric
codes). The engines alternate over random ids; a time is that of a prompt up to the logits of its
last token, from an empty cache. An engine that ends, or whose model cannot be converted, is a row's
cell that says so; the others go on. Results are kept by processor in results/prompt.json and
prompt.md.

Ours is measured with the instruction set that `SPSBENCH_MARCH` names, else the processor's own; the
peers with theirs: OpenVINO's is limited by `ONEDNN_MAX_CPU_ISA=AVX2`, which has no bfloat16, so
that it multiplies in float32, llama.cpp's as it is compiled. peers.py says how they are installed.
"""

import argparse
import json
import math
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from timing import RESULTS, alternate, keep, milliseconds, ratio

WORK = Path("~/.cache/spsbench/peers/smollm2").expanduser()
LENGTHS, DTYPES = (64, 512, 2048), ("bfloat16", "float32", "int8", "int4")
ENGINES = ("native", "transformers", "llamacpp", "openvino")
PEERS = {"llamacpp": "gguf", "openvino": "openvino"}  # and the form in which each reads a model
CODES = ("int8", "int4")
VOCABULARY = 49152
PAUSE = 0.1  # seconds between prompts, in which threads of the engine before stop spinning
Read = Callable[[list[int]], Any]  # reads a prompt from an empty cache, to its last logits


def native(path: str, dtype: str, threads: int) -> Read:
    """Return a reader by our engine `fast`."""
    import torch

    from spsbench.engines.session.engine_config import engine_config_of
    from spsbench.extensions.cpu.fast import Fast
    from spsbench.models.source import source_of
    from spsbench.settings.execution import Access
    from spsbench.settings.models import ModelSpec

    torch.set_num_threads(threads)
    coded = dtype in CODES
    spec = ModelSpec(
        id=path, dtype="bfloat16" if coded else dtype, weights=dtype if coded else "checkpoint"
    )
    source = source_of(spec, Access(offline=True))
    model = source.model(source.locate(spec), mapped=True)
    Fast().prepare(model, threads=threads)
    if (config := engine_config_of(model)) is None or config.engine != "fast":
        raise RuntimeError(f"{path} in {dtype}: expected to run in fast, not {config}")
    lm = Fast().session(model)

    def read(ids: list[int]) -> Any:
        lm.commit(0)
        lm.append(torch.tensor(ids[:-1]), keep=0)
        return lm.append(torch.tensor(ids[-1:]), keep=1).logits

    return read


def transformers(path: str, dtype: str, threads: int) -> Read:
    """Return a reader by a plain pass of transformers' model."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    def read(ids: list[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([ids]), use_cache=True, logits_to_keep=1).logits

    return read


def llamacpp(path: str, dtype: str, threads: int) -> Read:
    """Return a reader by llama-cpp-python over a GGUF file."""
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=4096, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def read(ids: list[int]) -> Any:
        model.reset()
        model.eval(ids)
        return llama_cpp.llama_get_logits_ith(model.ctx, -1)[0]

    return read


def openvino(path: str, dtype: str, threads: int) -> Read:
    """Return a reader by OpenVINO GenAI's pipeline, which writes one token."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    limited = os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2"  # which has no bfloat16
    precision = "f32" if dtype == "float32" or limited else "bf16"
    hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
    pipeline = genai.LLMPipeline(path, "CPU", **hints)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos = 1, True
    config.set_eos_token_id(0)

    def read(ids: list[int]) -> Any:
        return pipeline.generate(openvino.Tensor(np.array([ids], dtype=np.int64)), config)

    return read


def serve(engine: str, path: str, dtype: str, threads: int) -> None:
    """Answer each line of the standard input, a prompt's ids, with the seconds that it takes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer
    reader = {"native": native, "transformers": transformers, "llamacpp": llamacpp}.get(
        engine, openvino
    )
    read = reader(path, dtype, threads)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        ids = json.loads(line)
        began = time.perf_counter()
        read(ids)
        print(time.perf_counter() - began, file=out, flush=True)


class Engine:
    """A process that holds a model.

    Attributes:
        failure: how the process ended before it was closed; None: it runs.
    """

    def __init__(self, name: str, python: str, path: str, dtype: str, threads: int) -> None:
        command = [python, __file__, "--serve", name, path, dtype, str(threads)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: Any = subprocess.Popen(command, stderr=subprocess.DEVNULL, **pipes)
        self.failure: str | None = None
        self._answer()

    def seconds(self, ids: Sequence[int]) -> float:
        """Time the reading of a prompt; NaN where the process has ended."""
        if self.failure is None:
            with suppress(BrokenPipeError):
                print(json.dumps(ids), file=self._process.stdin, flush=True)
        return math.nan if (line := self._answer()) is None else float(line)

    def _answer(self) -> str | None:
        line: str = self._process.stdout.readline()
        if line:
            return line
        if self.failure is None:
            self.failure = f"ended with exit code {self._process.wait()}"
            print(f"{self.failure}: {shlex.join(self._process.args)}", file=sys.stderr)
        return None

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def forms(
    work: Path, dtype: str, python: str | None, failures: dict[str, str]
) -> dict[str, tuple[str, str]]:
    """Return each engine's interpreter and model; convert what is missing.

    An engine whose model cannot be converted is added to `failures` instead.
    """
    from spsbench.settings.models import fetched_folder

    stock = work / "stock"
    if not stock.exists():
        save_narrow(fetched_folder("smollm2"), stock)
    models = {"native": (sys.executable, "smollm2"), "transformers": (sys.executable, str(stock))}
    if dtype in CODES:
        models.pop("transformers")  # whose layers over these codes are those of bfloat16
    if python is None:
        return models
    import peers

    for name, form in PEERS.items():
        try:
            path = peers.converted(stock, work / form / dtype, name, dtype, python)
            models[name] = python, str(path)
        except subprocess.CalledProcessError as error:
            failures[name] = f"conversion ended with exit code {error.returncode}"
    return models


def save_narrow(folder: Path, out: Path) -> None:
    """Save a model's weights in bfloat16, which all its numbers are rounded to."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)


def measure(
    engines: Mapping[str, Engine],
    lengths: Sequence[int],
    repeats: int,
    failures: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return a row for each length: milliseconds, and ratios of ours to each engine.

    An engine that has ended, or is in `failures`, has the reason in place of its milliseconds.
    """
    source = random.Random(0)
    rows = []
    for length in lengths:

        def read(engine: Engine, length: int = length) -> float:
            time.sleep(PAUSE)
            return engine.seconds([source.randrange(100, VOCABULARY) for _ in range(length)])

        calls = {name: partial(read, engine) for name, engine in engines.items()}
        times = alternate(calls, repeats, warm_up=1)
        ended = {name: engine.failure for name, engine in engines.items() if engine.failure}
        row: dict[str, Any] = {"tokens": length}
        row |= {f"{n}, ms": ended.get(n) or milliseconds(spent) for n, spent in times.items()}
        row |= {f"{name}, ms": reason for name, reason in failures.items()}
        row |= {
            f"fast over {name}": ratio(times["native"], spent)
            for name, spent in times.items()
            if name != "native" and not {name, "native"} & ended.keys()
        }
        rows.append(row)
    return rows


def main() -> None:
    """Measure, keep, write."""
    if sys.argv[1:2] == ["--serve"]:
        name, path, dtype, threads = sys.argv[2:]
        serve(name, path, dtype, int(threads))
        return
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    options.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    options.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options.add_argument("--peers-python", default=os.environ.get("SPS_ENGINES_PYTHON"))
    options.add_argument("--work", type=Path, default=WORK, help="converted models")
    options.add_argument("--convert", action="store_true", help="convert models, measure nothing")
    flags = options.parse_args()
    for dtype in flags.dtypes:
        failures: dict[str, str] = {}
        models = forms(flags.work.resolve(), dtype, flags.peers_python, failures)
        models = {name: models[name] for name in flags.engines if name in models}
        if flags.convert:
            continue
        engines = {name: Engine(name, *pair, dtype, flags.threads) for name, pair in models.items()}
        rows = measure(engines, flags.lengths, flags.repeats, failures)
        for engine in engines.values():
            engine.close()
        keep(RESULTS / "prompt", dtype, rows, threads=flags.threads)


if __name__ == "__main__":
    main()
