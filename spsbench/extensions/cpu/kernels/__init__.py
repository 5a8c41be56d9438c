"""The C kernels, and how they are compiled and called.

Depends on no other folder of `engines`. Read `native`, then `operators`; the C files begin at
`panels.c`.
"""
