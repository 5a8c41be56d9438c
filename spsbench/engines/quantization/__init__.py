"""Weights as whole numbers of 8 or 4 bits with scales.

Depends on `packing` and `kernels`. Read `codes`, then `layers`, then `panels`.
"""
