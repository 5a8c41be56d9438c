"""The opening of a pair: checked before anything heavy is imported, and loaded once."""

from collections.abc import Callable, Mapping
from typing import Any

from spsbench.api.prepare import note_default_drafters, prepare, with_head_drafter
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import Say, lines_to
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import access_of


def loaded_pair() -> Any:
    """Import what continues prompts, and no more."""
    from spsbench.api.loaded import LoadedPair

    return LoadedPair


def open_pair(
    options: Mapping[str, Any], say: Say | None = None, kind: Callable[[], Any] = loaded_pair
) -> Any:
    """Check options, then import and make a pair.

    Args:
        options: those of `spsbench.load`.
        say: receives each message for the user.
        kind: imports the class of the pair.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    access, rest = access_of(options)
    with lines_to(say):
        cell = make_cell(**with_head_drafter(rest, access))
        prepare(cell, access)
        with importing_libraries():
            pair_class = kind()
        pair = pair_class(rest, access, say)
        note_default_drafters([cell], {name for name, value in rest.items() if value is not None})
        return pair
