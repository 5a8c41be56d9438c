"""Settings: options of commands, the cells and experiments they describe, records of results."""
