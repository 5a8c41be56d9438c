"""Ways to run a language model: `eager` as transformers does, `fast` over packed weights.

Read `eager` (a session), then `fast` (preparation of a model), then the folders that `fast` uses:
`session`, `packing`, `quantization`, `replay`. `kernels` is their C code, `cuda` is independent.
"""
