"""Speculative sampling itself: the loop, its protocols, its randomness."""
