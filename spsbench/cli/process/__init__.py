"""The process of a command: `failures` (an error becomes a line and a code), and `ranks`.

Stands on `errors` and `hardware`.
"""
