"""Two vocabularies: the bytes of their tokens, and tokens of one as tokens of the other."""
