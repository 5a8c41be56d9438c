"""`sps score`."""
