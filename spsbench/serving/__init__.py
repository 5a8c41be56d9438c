"""A client for running servers: requests, answers by schema, counters of acceptance.

Stands on `errors` alone; decoders, `sps report FILE` and `sps check` use it. Read `http` (one
exchange, its bounds and retries), `fields` (a value from outside by type and range), `engines`,
`acceptance`.
"""
