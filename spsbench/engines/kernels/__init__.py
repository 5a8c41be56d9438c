"""The C kernels, and how they are compiled and called.

Depends on nothing in this room. Read `native`, then `operators`; the C files begin at `panels.c`.
"""
