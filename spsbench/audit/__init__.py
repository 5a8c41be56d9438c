"""Audits on real models and by enumeration: evidence that a method is lossless.

Stands on `loop`, `methods` and `models`. Read `verify` (what `sps verify` calls), then `exact`
(rules by enumeration) and `statistical` (texts by betting).
"""
