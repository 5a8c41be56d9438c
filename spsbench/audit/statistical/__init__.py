"""Whether emitted tokens are the target's, by betting."""
