"""The version of the package, beneath everything that records it."""

__version__ = "0.2.0"
