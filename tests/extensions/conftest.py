"""Fixtures of the command line, for commands that an extension brings."""

from tests.cli.conftest import generate, pair, quickly, sps, target, terminal

__all__ = ["generate", "pair", "quickly", "sps", "target", "terminal"]
