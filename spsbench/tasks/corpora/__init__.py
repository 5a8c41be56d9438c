"""Texts that need no download: the standard library, generated news, generated functions."""
