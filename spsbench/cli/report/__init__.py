"""`sps report`."""
