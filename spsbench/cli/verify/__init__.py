"""`sps verify`: `command` has the flags, `rules` and `output` print the results.

Stands on `audit`, which verifies without printing. Read `command`, then `rules` and
`output`.
"""
