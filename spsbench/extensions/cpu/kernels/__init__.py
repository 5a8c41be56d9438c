"""The C kernels, and how they are compiled and called.

Depends on no other folder of the engine. Read `native`, then `steps` (each operator once); the C
files begin at `program.c`.
"""
