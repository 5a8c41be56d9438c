"""`sps generate`."""
