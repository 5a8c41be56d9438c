"""Proofs on real models that nothing was lost."""
