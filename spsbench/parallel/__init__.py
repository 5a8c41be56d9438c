"""Ranks that share a model: process groups, tensor parallelism (experimental).

Stands on `engines`; `models`, `methods`, `benchmark` and the command line use `process_group`.
"""
