"""Published drafting heads: recognised by their files, read, and run.

Stands on `engines` and `checkpoints`. Read `families` (every family, its tensors' names; no torch),
then `files`, `head` (files become a head), `layers` and `network` (the interface), and a short
family, such as `medusa`.
"""
