"""The types of what `spsbench` gives on first use."""

from collections.abc import Callable
from typing import Any

from spsbench.library.pair import Pair
from spsbench.library.prompts import Prompt
from spsbench.library.run import Run
from spsbench.library.text import Text
from spsbench.runs.pace import Pace

__version__: str
__all__ = ["__version__", "bench", "generate", "load"]

def load(*, say: Callable[[str], None] = ..., **asked: Any) -> Pair: ...
def generate(prompt: Prompt, **asked: Any) -> Text: ...
def bench(
    task: str,
    *,
    pair: Pair | None = ...,
    say: Callable[[str], None] = ...,
    watch: Callable[[Pace], None] = ...,
    **asked: Any,
) -> Run: ...
