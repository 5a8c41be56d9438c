"""Students: draft models and heads that learn to predict the target, by kind.

Read `student` (the interface), then `draft` and a head (`medusa`), and `table` (kinds by name).
"""
