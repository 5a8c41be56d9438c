"""llama-cpp-python as the decoder, over a GGUF file, in a process of its own.

ArS is its plain generation. A draft is its prompt lookup (`draft=lookup`, of n-grams of two tokens)
or, by its interface for draft models, another GGUF file drafting greedily (`draft=FILE`); it keeps
a drafted token where the target's own sample is the same. The seed is the cell's, and penalties are
off.
"""

from spsbench.methods.decoders.engine_process import EngineDecoder


class LlamaCppDecoder(EngineDecoder):
    """llama-cpp-python; `window` is the context of its cache in tokens."""

    engine = "llamacpp"
