"""Sequential tests by betting that emitted tokens follow the target's distribution.

Stands on `models` and `loop`. Read `betting` (the e-process), `positions` (what is bet on),
`referee` (the target's distributions), `finding` (the verdict), `texts`, then `greedy` (ties).
"""
