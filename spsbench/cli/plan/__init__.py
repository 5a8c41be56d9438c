"""`sps plan`: `command` has the flags, `what_if` the single predictions."""
