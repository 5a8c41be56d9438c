"""`spsbench.load`: a pair of models, checked before anything heavy is imported, and loaded once."""

from typing import Any, Unpack

from spsbench.api.opening import open_pair
from spsbench.messages import Say
from spsbench.settings.keywords import LoadOptions


def load(*, say: Say | None = None, **options: Unpack[LoadOptions]) -> Any:
    """Load a pair: `spsbench.load(target="nano", draft="nano-draft", k=4, temperature=0.8)`.

    Options are those of `sps generate` with underscores: of the models (`target`, `draft`, `dtype`,
    `draft_dtype`, ...), of the method, of the sampling, and `offline`, `allow_pickle`, `threads`.
    Those of method and sampling may be changed at every call.

    Args:
        say: receives each message for the user; None: messages go to `logging` only.

    Returns:
        A `spsbench.api.pair.Pair`.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    return open_pair(options, say, whole_pair)


def whole_pair() -> Any:
    """Import the pair with all that may be asked of it."""
    from spsbench.api.pair import Pair

    return Pair


def generate(prompt: Any, **options: Unpack[LoadOptions]) -> Any:
    """Load a pair and continue one prompt: `load(**options).generate(prompt)`."""
    return load(**options).generate(prompt)
