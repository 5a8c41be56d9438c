"""Ranks that share a model or learn together: process groups, tensor parallelism (experimental).

Stands on `engines`; `models`, the command line and extensions use it. Read `process_group` (how
ranks meet, wait and fail), then `tensor_parallel` (one pass over the parts of every rank).
"""
