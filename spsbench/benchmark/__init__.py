"""Cells and samples become records."""
