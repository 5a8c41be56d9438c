"""Exact output distribution of a rule, by enumeration of its uniforms.

Stands on `loop` and `methods.verifiers`. Read `enumeration` (thresholds and cells), `tables`
(models as tables), `cases` and `pairings` (what is enumerated), then `rules` and `counterexample`.
"""
