"""`sps verify`."""
