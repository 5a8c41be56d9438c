"""Sessions on CUDA: passes of fixed shape, recorded as graphs. Experimental: never run on a GPU.

Depends on `eager`. Read `graphs`, then `static`.
"""
