"""Isolation of programs written by a model: one fresh interpreter each, or a refusal.

Knows nothing of tasks, scores and torch: it takes a program's text and gives a verdict.
"""
