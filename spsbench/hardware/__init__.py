"""Hardware: processors, memory, load and files of this machine.

Stands on `errors` alone. Read `environment` (what a run records of its machine), `contention`
(whether other work disturbed a timing), then `files`, `memory`, `signals`, `ranks` and
`child` (a process with limits).
"""
