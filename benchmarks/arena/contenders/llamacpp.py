"""llama.cpp through the low-level functions of llama-cpp-python, under a greedy loop of our own.

Its own speculative programs are not in the Python package. The loop adds an argmax a row in numpy,
well under 1% of a pass; all else is llama.cpp's.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as native
from numpy.typing import NDArray

from arena.contenders.contender import Contender, Setting, Turn, alternate
from arena.gguf_file import write

REPACKED = "SPSBENCH_LLAMACPP_REPACKED"  # 0: weights as they are in the file


def convert(setting: Setting) -> None:
    """Both models as GGUF files."""
    for name, folder in (("target", setting.target), ("draft", setting.draft)):
        path = _file(setting, name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(Path(folder), path, setting.weights or setting.dtype)


def _file(setting: Setting, name: str) -> Path:
    return setting.converted("llamacpp") / f"{name}.gguf"


class Session:
    """A model with one sequence in its cache."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        wanted = native.llama_model_default_params()
        wanted.use_extra_bufts = os.environ.get(REPACKED) != "0"
        self._model = native.llama_model_load_from_file(str(path).encode(), wanted)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        options = native.llama_context_default_params()
        options.n_ctx = context
        options.n_threads = options.n_threads_batch = threads
        self._context = native.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        self._memory = native.llama_get_memory(self._context)
        self._batch = native.llama_batch_init(options.n_batch, 0, 1)
        self._vocabulary = native.llama_vocab_n_tokens(native.llama_model_get_vocab(self._model))
        self.length = 0

    def feed(self, tokens: Sequence[int], keep: int) -> NDArray[np.int64]:
        """[keep] the argmax after each of the last `keep` tokens."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i >= count - keep
        status = native.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        self.length += count
        rows = [
            np.ctypeslib.as_array(
                native.llama_get_logits_ith(self._context, i), shape=(self._vocabulary,)
            ).argmax()
            for i in range(count - keep, count)
        ]
        return np.array(rows, dtype=np.int64)

    def cut(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        native.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.length = min(self.length, length)


class LlamaCpp(Contender):
    """Greedy ArS and greedy SpS; sampling is not measured here."""

    def load(self, setting: Setting) -> None:
        """Both models, mapped into memory as is its default."""
        if setting.temperature > 0:
            raise ValueError("only greedy decoding is measured on llama.cpp: --temperature 0")
        native.llama_backend_init()
        self._threads, self._k = setting.threads or setting.cores, setting.k
        self._target, self._draft = (
            Session(_file(setting, name), setting.context, self._threads)
            for name in ("target", "draft")
        )

    def arms(self) -> Sequence[str]:
        """ArS and SpS."""
        return ("ars", "sps")

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        """Rounds of at most K drafted tokens; the prefill is in none of them."""
        k = self._k if arm == "sps" else 0
        x, end = list(prompt), len(prompt) + tokens
        for session in (self._target, self._draft)[: 1 + (k > 0)]:
            session.cut(0)
            session.feed(x[:-1], keep=1)
        blocks: list[tuple[int, float]] = []
        while len(x) < end:
            began = time.perf_counter()
            draft = self._drafted(x, min(k, end - len(x) - 1))
            self._target.cut(len(x) - 1)
            best = self._target.feed([x[-1], *draft], keep=len(draft) + 1).tolist()
            kept = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
            x += best[: kept + 1]
            blocks.append((kept + 1, time.perf_counter() - began))
        return Turn(x[len(prompt) :], blocks)

    def _drafted(self, x: list[int], k: int) -> list[int]:
        draft: list[int] = []
        if k > 0:
            self._draft.cut(len(x) - 1)
            feed = x[self._draft.length :]
            for _ in range(k):
                feed = self._draft.feed(feed, keep=1).tolist()
                draft += feed
        return draft

    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        """Passes that are cut off again."""
        for session in (self._target, self._draft):
            session.cut(0)
            session.feed(prompt, keep=1)

        def score(session: Session, count: int) -> None:
            session.feed(prompt[:count], keep=count)
            session.cut(len(prompt))

        return alternate(
            repeats,
            one=lambda: score(self._target, 1),
            block=lambda: score(self._target, self._k + 1),
            draft=lambda: score(self._draft, 1),
        )

    def notes(self) -> dict[str, Any]:
        """Threads, version, and how it was built."""
        return {
            "threads": self._threads,
            "llama-cpp-python": llama_cpp.__version__,
            "system": native.llama_print_system_info().decode(),
        }
