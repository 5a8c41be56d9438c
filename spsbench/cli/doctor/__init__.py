"""`sps doctor`."""
