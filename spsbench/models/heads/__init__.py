"""Published drafter heads: recognised by their files, and checked before a weight is read."""
