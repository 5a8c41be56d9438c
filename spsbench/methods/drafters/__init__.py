"""Drafters, one file each: models, heads, and rules over the text so far.

Stands on `loop.types` and `loop.drafter_context`. Read `ngram` (the smallest), `model`, `heads`
(every head, over `head_frontier`), `shaped` (what all trees share), then any other.
"""
