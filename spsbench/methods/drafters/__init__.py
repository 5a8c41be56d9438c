"""Drafters, one file each: models, heads, and rules over the text so far.

Stands on `loop.types` and `loop.drafter_context`. Read `ngram` (the smallest), `model`, `headed`
(what all heads share), `shaped` (what all trees share), then any other.
"""
