"""The engines that are measured, each a class that a worker process of its own loads.

Only `contender` may be imported by all of them: a peer's interpreter need not have spsbench.
"""
