"""`sps plan`: `command` has the flags, `log` the plans from logs and the formulas.

Stands on `planning`, which plans without printing. Read `command`, then `log`.
"""
