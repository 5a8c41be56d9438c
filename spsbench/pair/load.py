"""`spsbench.load`: a pair of models, checked before anything heavy is imported, and loaded once."""

from typing import Any, Unpack

from spsbench.hardware.memory import importing_libraries
from spsbench.messages import Say, lines_to
from spsbench.models.prepare import note_default_drafters, prepare_request
from spsbench.settings.keywords import LoadOptions
from spsbench.settings.request import CellRequest


def load(*, say: Say | None = None, **options: Unpack[LoadOptions]) -> Any:
    """Load a pair: `spsbench.load(target="nano", draft="nano-draft", k=4, temperature=0.8)`.

    Options are those of `sps generate` with underscores: of the models (`target`, `draft`, `dtype`,
    `draft_dtype`, ...), of the method, of the sampling, and `offline`, `allow_pickle`, `threads`.
    Those of method and sampling may be changed at every call.

    Args:
        say: receives each message for the user; None: messages go to `logging` only.

    Returns:
        A `spsbench.pair.pair.Pair`.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    with lines_to(say):
        return open_pair(CellRequest.of(options), say)


def open_pair(request: CellRequest, say: Say | None = None) -> Any:
    """Check the models of a request, then import what runs them, and load them: see `load`."""
    cell = prepare_request(request)
    with importing_libraries():
        from spsbench.pair.pair import Pair
    pair = Pair(cell, request.options, request.access, say)
    note_default_drafters([cell], request.options)
    return pair


def generate(prompt: Any, **options: Unpack[LoadOptions]) -> Any:
    """Load a pair and continue one prompt: `load(**options).generate(prompt)`."""
    return load(**options).generate(prompt)
