"""Published drafter heads: recognised by their files, checked before a weight is read.

Stands on `models.weights`. Read `description` (what a head is), `reading` (files become one), then
`checkpoint`, `weights` and `formats`.
"""
