"""spsbench: the laboratory for speculative sampling.

The public interface is `spsbench.generate` and, for parts of one's own, `spsbench.decode.decode`
with the protocols of `spsbench.types`. Importing the package alone loads neither torch nor models.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "generate"]


def __getattr__(name: str) -> Any:
    """`generate` on first use, so that `sps --help` need not load torch."""
    if name == "generate":
        from spsbench.api import generate

        return generate
    raise AttributeError(f"module 'spsbench' has no attribute {name!r}")
