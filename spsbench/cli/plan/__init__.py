"""`sps plan`: `command` has the flags, `what_if` the single predictions.

Stands on `planning`, which plans without printing. Read `command`, then `what_if`.
"""
