"""Work in many pieces on many workers: one driver hands out, takes in, and writes.

Stands on `settings` and `store`. Read `work`, `map_units` (the driver), `ray_workers` and
`environment` (what a worker must have), then one use, such as `benchmark.maker`.
"""
