"""Render summaries as files for people and programs, one module a format; torch-free.

Stands on `metrics` and `store`. Read `run_source` and `run_tables` (runs become tables),
`reporter` (what a format receives), `columns`, `remarks`, then a format, such as `text`, and
`html` with `page`. `others` reads what other benchmarks have measured.
"""
