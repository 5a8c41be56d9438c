"""Acceptance rules, one file each; `audit/exact` enumerates every one.

Stands on `loop.types` and `loop.sampling`. Read `sps` (the paper's rule), `rejection`, `match`,
`block`, then `tree_tables` and the rules for trees, and last the lossy ones (`lenient`,
`set_acceptance`).
"""
