"""Render summaries as files for people and programs, one module a format."""
