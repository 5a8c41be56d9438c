"""spsbench: the laboratory for speculative sampling.

The library is `spsbench.load`, which gives a pair of models with `generate`, `stream`, `compare`,
`bench`, `plan` and `verify`; `spsbench.generate` and `spsbench.bench` are one call each. For parts
of one's own there is `spsbench.loop.decode.decode` with the protocols of `spsbench.loop.types`.
What may go wrong is an `SpsError` with a line and an exit code.
Importing the package alone loads neither torch nor models.
"""

from typing import Any

from spsbench.errors import (
    BatchError,
    CannotCreateError,
    DataError,
    Exit,
    InUseError,
    MismatchError,
    MissingError,
    OutOfMemoryError,
    PermissionDeniedError,
    PlugInError,
    SpsError,
    UnavailableError,
    UsageError,
    WriteError,
)
from spsbench.version import __version__

__all__ = [
    "BatchError",
    "CannotCreateError",
    "DataError",
    "Exit",
    "InUseError",
    "MismatchError",
    "MissingError",
    "OutOfMemoryError",
    "Pair",
    "PermissionDeniedError",
    "PlugInError",
    "SpsError",
    "UnavailableError",
    "UsageError",
    "WriteError",
    "__version__",
    "bench",
    "generate",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import a part of the library on first use, so that `sps --help` does not load torch."""
    if name in ("generate", "load"):
        from spsbench.pair import load

        return getattr(load, name)
    if name == "Pair":
        from spsbench.pair.pair import Pair

        return Pair
    if name == "bench":
        from spsbench.benchmark.bench import bench

        return bench
    raise AttributeError(f"module 'spsbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names that a notebook completes, the library's included."""
    return sorted({*globals(), *__all__})
