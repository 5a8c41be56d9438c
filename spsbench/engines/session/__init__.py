"""Sessions over a model, their caches and their masks.

Depends on `replay` for layers without Python. Read `session`, then `cache`, then the masks.
"""
