"""A client for running servers: requests, answers by schema, counters of acceptance.

Stands on `untrusted` alone; decoders, `sps report FILE` and `sps check` use it. Read `wire` (what
engines say), `answers`, `http` (one exchange, its bounds and retries), `engines`, `acceptance`.
"""
