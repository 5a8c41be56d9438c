"""The text that a drafter learns from: the target's own, made in batches and kept."""
