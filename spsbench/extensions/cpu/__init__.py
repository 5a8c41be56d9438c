"""The compiled engine `fast`: weights packed for this processor, passes replayed in C.

It stands on `engines` (sessions, layers of codes). Read `fast` (preparation of a model), `packing`
(its weights), then `replay` (a pass as a program in C); `kernels` is the C code.
"""
