"""Ranks that share a model or learn together: process groups, tensor parallelism (experimental).

Stands on `engines`; `models`, `training` and the command line use it. Read `process_group` (how
ranks meet, wait and fail), then `tensor_parallel` (one pass over the parts of every rank).
"""
