"""spsbench: the laboratory for speculative sampling.

The library is `spsbench.load`, which gives a pair of models with `generate`, `stream`, `compare`,
`bench`, `plan` and `verify`; `spsbench.generate` and `spsbench.bench` are one call each.
`spsbench.generate_with` is for transformers' own `generate`. For parts of one's own there is
`spsbench.loop.decode.decode` with the protocols of `spsbench.loop.types`.
What may go wrong is an `SpsError` with a line and an exit code.
Importing the package alone loads neither torch nor models.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from spsbench import errors
from spsbench.version import __version__

_HOMES = {"Pair": "pair.pair", "bench": "benchmark.bench"} | dict.fromkeys(
    ("generate", "load"), "pair.load"
)
if Path(__file__).with_name("extensions").joinpath("transformers").is_dir():
    _HOMES["generate_with"] = "extensions.transformers.generate"
_ERRORS = [name for name in vars(errors) if name.endswith("Error")]

__all__ = ["Exit", *_ERRORS, *_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a part of the library on first use, so that `sps --help` does not load torch."""
    if name not in __all__:
        raise AttributeError(f"module 'spsbench' has no attribute {name!r}")
    return getattr(import_module(f"spsbench.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    """Return the names that a notebook completes, the library's included."""
    return sorted({*globals(), *__all__})
