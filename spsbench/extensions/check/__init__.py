"""Audit other engines' servers as targets: losslessness, greedy texts, acceptance, speed.

Nothing here loads torch except `weights`, when it is called. The sequential test comes from
`audit.statistical`. Read `options` (what a check is asked), `plan`, `laws`, `greedy`, `speed`, then
`check`, which runs all of them, and `page`, which formats the results.
"""
