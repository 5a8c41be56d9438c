"""Choices of K for the next round, one file each."""
