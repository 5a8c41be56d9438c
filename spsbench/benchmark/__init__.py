"""Benchmarks: run every cell on every sample and write records."""
