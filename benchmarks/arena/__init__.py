"""The side-by-side measurement behind `benchmarks/peers.py`: pairs, workers, turns, figures."""
