"""Published drafter heads: told from their files, checked before a weight is read."""
