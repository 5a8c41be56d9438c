"""Run directories: what is on disk survives anything that happens to the process."""
