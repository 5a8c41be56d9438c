"""Two vocabularies: what their tokens write, and one's tokens as the other's."""
