"""llama.cpp over several sequences at once, greedily, by llama-cpp-python's low-level interface.

    python -m pairs.sequences FILE.gguf SEQUENCES CONTEXT THREADS

answers a line of JSON (prompts, their ids; tokens, at most; ends, the ids that end a text) with a
line: the ids of each text. All prompts are read in one batch; then each pass has a token of each
text that goes on. Only its interpreter needs llama-cpp-python.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np


def open_context(path: str, sequences: int, context: int, threads: int) -> tuple[Any, int]:
    """Return a context with room for `context` tokens a sequence, and the vocabulary's size.

    Raises:
        ValueError: a file that llama.cpp cannot load.
    """
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise ValueError(f"llama.cpp cannot load {path}")
    options = llama_cpp.llama_context_default_params()
    options.n_seq_max, options.n_ctx = sequences, sequences * context
    options.n_batch = sequences * context
    options.n_threads = options.n_threads_batch = threads
    made = llama_cpp.llama_init_from_model(model, options)
    return made, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))


def generate(
    made: Any, size: int, prompts: Sequence[list[int]], tokens: int, ends: Sequence[int]
) -> list[list[int]]:
    """Return the greedy continuation of each prompt, up to an end, which it includes."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(made), True)
    batch = llama_cpp.llama_batch_init(sum(map(len, prompts)), 0, 1)
    texts: list[list[int]] = [[] for _ in prompts]
    feeding = dict(enumerate(prompts))
    while feeding:
        batch.n_tokens, last = 0, {}
        for row, ids in feeding.items():
            start = len(prompts[row]) + len(texts[row]) - 1 if texts[row] else 0
            for offset, token in enumerate(ids):
                at = batch.n_tokens
                batch.token[at], batch.pos[at] = token, start + offset
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
                batch.logits[at] = offset == len(ids) - 1
                batch.n_tokens, last[row] = at + 1, at
        if llama_cpp.llama_decode(made, batch):
            raise RuntimeError("llama_decode failed")
        feeding = {}
        for row, at in last.items():
            law = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(made, at), (size,))
            texts[row].append(int(law.argmax()))
            if texts[row][-1] not in ends and len(texts[row]) < tokens:
                feeding[row] = texts[row][-1:]
    llama_cpp.llama_batch_free(batch)
    return texts


def main() -> None:
    """Answer until the input ends."""
    path, *numbers = sys.argv[1:]
    made, size = open_context(path, *map(int, numbers))
    for line in sys.stdin:
        print(json.dumps(generate(made, size, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
