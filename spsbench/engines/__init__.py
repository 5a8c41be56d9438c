"""Ways to run a language model: `eager` as transformers does, `static` for CUDA (experimental).

Read `eager` (a session), then `session` (caches, masks, passes for several texts), `quantization`
(layers of codes), and `replay`, the seam by which an extension runs passes itself.
"""
