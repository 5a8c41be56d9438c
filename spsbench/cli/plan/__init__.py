"""`sps plan`."""
