"""Sequential tests by betting that emitted tokens follow the target's distribution.

Stands on `models` and `loop`. Read `betting` (the e-process), `forward` (the target's laws),
`pair` and `audit` (one audit), then `greedy` (ties).
"""
