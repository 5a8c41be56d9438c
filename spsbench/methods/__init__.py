"""Ways to draft and to verify, and how those of a cell are put together.

Stands on `loop`, `engines` and `models`. Read `resolve` (a cell is checked), `build` (models,
drafter, verifier and schedule are opened), then one file each of `drafters`, `verifiers` and
`schedules`.
"""
