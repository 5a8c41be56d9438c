"""Linear layers in layouts whose weights are read at the memory's speed.

Depends on `kernels`. Read `linear_layers`, then `panels`, then `layouts`.
"""
