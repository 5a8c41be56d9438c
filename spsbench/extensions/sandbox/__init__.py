"""Isolation of programs written by a model: one fresh interpreter each, or a refusal.

Read `levels` first, then `choice`, `isolation`, `confinement` and `jail` (what confines), `runner`
and `selftest`.

Takes a program's text and gives a verdict; depends neither on tasks and scores nor on torch.
"""
