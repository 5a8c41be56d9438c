"""Settings: options of commands, the cells and experiments they describe, records.

Stands on `spec` and `registry`; torch-free. Read `options` (a field is an option), `cell`,
`cell_from_options`, then `grid` and `experiment` (many cells), `records` and `task`.
"""
