"""Render summaries as files for people and programs, one module a format; torch-free.

Stands on `metrics` and `store`. Read `reporter` (what a format receives), `run_tables` (runs become
tables), `columns`, `remarks`, then a format, such as `text`, and `html` with `page`.
`other_benchmarks` reads what other tools have measured.
"""
