"""The types of what `spsbench` gives on first use."""

from collections.abc import Callable
from typing import Any

from spsbench.benchmark.estimate import RunProgress
from spsbench.benchmark.run import Run
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
from spsbench.models.prompts import Prompt
from spsbench.pair.pair import Pair
from spsbench.pair.text import Text

__version__: str
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

def load(*, say: Callable[[str], None] = ..., **options: Any) -> Pair: ...
def generate(prompt: Prompt, **options: Any) -> Text: ...
def bench(
    task: str,
    *,
    pair: Pair | None = ...,
    say: Callable[[str], None] = ...,
    watch: Callable[[RunProgress], None] = ...,
    **options: Any,
) -> Run: ...
