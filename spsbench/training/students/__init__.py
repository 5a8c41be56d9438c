"""What is taught: a draft model, or a head; each foretells the target's laws, and is written."""
