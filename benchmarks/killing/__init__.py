"""What `benchmarks/kills.py` is made of."""
