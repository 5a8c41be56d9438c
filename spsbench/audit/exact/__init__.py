"""Exact output distribution of a rule, by enumeration."""
