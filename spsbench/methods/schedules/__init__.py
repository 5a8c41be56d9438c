"""Choices of K for the next round, by what they look at.

Stands on `loop.types`. Read `by_history` (`constant` first) and `by_utility` (by the clock), then
`by_distribution` (the law of the next token) and `by_batch` (a budget that texts share).
"""
