"""Ways to run a language model: `eager` as transformers does, `fast` over packed weights.

Read `eager` (a session), then `fast` (what is done to a model), then the rooms that `fast` visits:
`session`, `packing`, `quantization`, `replay`; `kernels` is C below them, `cuda` stands apart.
"""
