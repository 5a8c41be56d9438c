"""What drafters by rule look things up in: an automaton of texts, the growth of a draft from it."""
