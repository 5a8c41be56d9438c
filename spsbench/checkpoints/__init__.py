"""Folders of models and heads: config.json, weight files and their headers; no tensor is read.

Stands on `hardware`. Read `config` (JSON files and their checks), then `weights`.
"""
