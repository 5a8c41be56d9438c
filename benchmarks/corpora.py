"""Texts of the bundled pair's recipe, for other benchmarks: held-out modules, news, functions."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "recipes"))

from nano import functions, news, stdlib

__all__ = ["functions", "news", "stdlib"]
