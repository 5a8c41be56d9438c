"""Servers of other engines as targets: ask them, audit their text, count and time their answers.

Nothing here loads torch; only `weights` does, when it is called. It rests on `audit.statistical`
for the betting. Read `http`, `engines`, `acceptance`, `laws`, `greedy`, `speed`, `plan`, then
`check`, which asks for all of it, and `page`, which shows it.
"""
