"""Audit other engines' servers as targets: losslessness, greedy texts, acceptance, speed.

Torch is loaded by `weights` alone; the sequential test is that of `audit.statistical`.
Read `options`, `texts`, `bets`, `greedy` and `speed`, then `check`, which runs all, and `page`.
"""
