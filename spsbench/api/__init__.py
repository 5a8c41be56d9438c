"""The package as a library: pairs that are loaded once, and what can be done with them."""
