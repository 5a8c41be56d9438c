"""Summaries -> files for people and programs, one format a file."""
