"""Benchmarks: prompts in, scores out; one file each, no torch."""
