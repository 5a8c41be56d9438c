"""Linear layers in layouts whose weights are read at the memory's speed.

Depends on `kernels`. Read `panels`, then `coded_panels` and `tuning`.
"""
