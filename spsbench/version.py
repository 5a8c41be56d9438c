"""The version of the package, beneath everything that records it."""

__version__ = "0.1.0"
