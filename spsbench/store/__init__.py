"""Storage of runs: folders, logs, manifests and traces that survive a crash at any time.

Stands on `settings.records` and `hardware.files`; torch-free. Read `log` (one checked line each),
`manifest`, `starts`, `run` (all in a folder), then `lock`, `atomic` and `traces`.
"""
