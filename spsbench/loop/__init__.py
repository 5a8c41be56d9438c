"""Speculative sampling itself: the loop, its protocols, its randomness.

Stands on torch and on the records of `settings`. Read `types` (the protocols), `reference` (the
paper's algorithm), `decode` (the loop that runs), then `noise`, `sampling`, `tree` and `batch`.
"""
