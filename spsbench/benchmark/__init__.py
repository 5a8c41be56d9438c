"""Benchmarks: run every cell on every sample and write records.

Stands on `generation` (a prompt becomes a record), `tasks` and `store`. Read `jobs` (all methods
of a prompt), `conduct` (a run from its beginning to its report), then `run`.
"""
