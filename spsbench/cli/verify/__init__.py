"""`sps verify`: `command` has the flags, `rules` and `output` print the results."""
