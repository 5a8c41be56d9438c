"""Audits on real models and by enumeration: evidence that a method is lossless."""
