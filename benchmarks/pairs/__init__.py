"""Pairs of random weights in real shapes, and the files of them that other engines take."""
