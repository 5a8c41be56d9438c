"""A client for running servers: requests, answers by schema, counters of acceptance.

Stands on `errors` alone; decoders, `sps report FILE` and `sps check` use it. Read `http` (one
exchange and its retries), `body` (its bounds), `wire` (what engines say), `answers`, `engines`,
`acceptance`.
"""
