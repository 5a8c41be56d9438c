"""`sps bench`."""
