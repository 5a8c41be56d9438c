"""The formats of heads, one file each; `table.py` lists them.

Stands on `models.heads.description`. Read `format` (the interface), `table`, then a short one,
such as `medusa`, and `speculators`, which names others' formats.
"""
