"""Acceptance rules, one file each; `audit/exact` enumerates every one.

Stands on `loop.types`, `loop.tree` and `loop.sampling`. Read `walk_down` (what ten rules share),
`sps` (the paper's rule), `chain_rules` (its variants), `match`, then `block` and the rules for
trees, and last `set_acceptance`.
"""
