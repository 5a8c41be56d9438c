"""Two vocabularies: the bytes of their tokens, and tokens of one as tokens of the other.

Stands on no other room. Read `vocabulary` (bytes of each token), then `translator`.
"""
