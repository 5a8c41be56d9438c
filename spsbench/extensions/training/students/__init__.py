"""Students: draft models and heads that learn to predict the target, by kind.

Read `student` (the interface), then `draft` and a head (`eagle`), and `table` (a student by name).
"""
