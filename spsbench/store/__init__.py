"""Storage of runs: folders, logs, manifests and traces that survive a crash at any time."""
