"""Workers that make units of work: one driver hands units out, and alone writes.

Read `work`, `map_units` and `ray_workers`; `environment` is what workers must have alike.
"""
