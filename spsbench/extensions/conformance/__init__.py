"""What other engines' pipelines take from here: a pytest plug-in, expectations, test vectors.

Torch is loaded by `vectors` alone; servers are audited by processes of `sps check`.
Read `plugin` and `expect`, then `vectors`.
"""
