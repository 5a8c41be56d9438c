"""Audits on real models and by enumeration: evidence that a method is lossless.

Stands on `loop`, `methods` and `models`. Read `verify` (what `sps verify` calls) and `warping`
(the audits' own laws), then `exact` (rules by enumeration) and `statistical` (texts by betting).
"""
