"""`spsbench.load`: a pair of models, checked before anything heavy is imported, and loaded once."""

from typing import TYPE_CHECKING

from spsbench.hardware.memory import importing_libraries
from spsbench.messages import Say, lines_to
from spsbench.models.prepare import facts_of, note_default_drafters, prepare_access
from spsbench.settings.cell import CellRequest
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid
from spsbench.settings.options import parse, takes

if TYPE_CHECKING:
    from typing import Unpack

    from spsbench import LoadOptions
    from spsbench.models.prompts import Prompt
    from spsbench.pair.pair import Pair
    from spsbench.pair.text import Text


@takes(Grid, Access)
def load(*, say: Say | None = None, **options: "Unpack[LoadOptions]") -> "Pair":
    """Load a pair: `spsbench.load(target="nano", draft="nano-draft", k=4, temperature=0.8)`.

    Options are those of `sps generate` with underscores: of the models (`target`, `draft`, `dtype`,
    `draft_dtype`, ...), of the method, of the sampling, and `offline`, `allow_pickle`, `threads`.
    Those of method and sampling may be changed at every call.

    Args:
        say: receives each message for the user; None: messages go to `logging` only.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    with lines_to(say):
        grid, access = parse(options, Grid, Access)
        return open_pair(grid, access, say)


def open_pair(
    grid: Grid, access: Access, say: Say | None = None, request: CellRequest | None = None
) -> "Pair":
    """Return the pair of a grid, the first value of each option, its models loaded: see `load`.

    Folders are checked before torch is imported; models at a hub are fetched. A note names a
    drafter that no option named. `request`: what `grid` asks for, if known. SpsError: unusable
    models.
    """
    facts = facts_of(access)
    request = request or grid.one(facts)
    prepare_access([request], access)
    with importing_libraries():
        from spsbench.pair.pair import Pair
    pair = Pair(request, grid, access, facts, say)
    note_default_drafters([request], grid.axes)
    return pair


@takes(Grid, Access)
def generate(prompt: "Prompt", **options: "Unpack[LoadOptions]") -> "Text":
    """Load a pair and continue one prompt: `load(**options).generate(prompt)`."""
    return load(**options).generate(prompt)
