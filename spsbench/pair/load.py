"""`spsbench.load`: a pair of models, checked before anything heavy is imported, and loaded once."""

from typing import Any, Unpack

from spsbench.hardware.memory import importing_libraries
from spsbench.messages import Say, lines_to
from spsbench.models.prepare import cell_of, note_default_drafters, prepare
from spsbench.settings.execution import access_of
from spsbench.settings.keywords import LoadOptions


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
    access, of_cell = access_of(options)
    with lines_to(say):
        cell = cell_of(of_cell, access)
        prepare(cell, access)
        with importing_libraries():
            from spsbench.pair.pair import Pair
        pair = Pair(cell, of_cell, access, say)
        note_default_drafters(
            [cell], {name for name, value in of_cell.items() if value is not None}
        )
        return pair


def generate(prompt: Any, **options: Unpack[LoadOptions]) -> Any:
    """Load a pair and continue one prompt: `load(**options).generate(prompt)`."""
    return load(**options).generate(prompt)
