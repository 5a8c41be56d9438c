"""Benchmarks: run every cell on every sample and write records.

Stands on `methods`, `tasks` and `store`. Read `generation` (a prompt becomes a record), `jobs`
(all methods of a prompt), `conduct` (a run from its beginning to its report), then `run`.
"""
