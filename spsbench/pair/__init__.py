"""Pairs: a target and its drafter, loaded once; what `spsbench.load` gives.

Stands on `benchmark`, `planning` and `audit`. Read `load` (checks before torch), `pair`, and `text`
(what a pair returns); `export` writes drafters as `heads.export` forms them for other engines.
"""
