"""The exact law of a rule, by enumeration."""
