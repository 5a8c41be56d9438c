"""Sessions over a model, their caches and their masks.

Depends on `eager`, and on `replay` for passes that an extension runs. Read `session`, then `cache`,
then the masks.
"""
