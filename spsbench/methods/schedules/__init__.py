"""Choices of K for the next round, by what they look at.

Stands on `loop.types`. Read `by_history` (constant K first), `by_utility` (by the clock),
`by_payoff` and `by_distribution` (the distribution of the next token).
"""
