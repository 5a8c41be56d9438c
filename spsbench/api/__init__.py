"""The library: pairs of models, loaded once, and functions for every command."""
