"""`sps train`."""
