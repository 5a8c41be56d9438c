"""The sampling that a model's own `generation_config.json` names: what a chat with it defaults to.

Of all that the file may hold, the options of the warp belong to a law that is kept exactly. A file
that says `do_sample: false` names greedy texts.
"""

from functools import cache, partial
from typing import Any

from spsbench.models.jsonfile import read_object
from spsbench.models.templates import files_of
from spsbench.settings.cell import WARP
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.models import ModelSpec
from spsbench.settings.sweep import OwnSampling

GENERATION = "generation_config.json"
LIMIT = 1 << 20  # bytes of the file


def own_sampling(ref: ModelSpec, *, offline: bool, allow_pickle: bool) -> dict[str, Any]:
    """The options of the warp that a model's generation config names.

    Raises:
        SpsError: a local model that cannot be used, or a value out of range.
    """
    found = files_of(ref, (GENERATION,), offline=offline, allow_pickle=allow_pickle)
    given = read_object(found[0], LIMIT) if found else {}
    if given.get("do_sample") is False:
        return {"temperature": 0.0}
    return {
        name: OF_CELL[name].convert(given[name], f"{name} ({GENERATION} of {ref})")
        for name in WARP
        if given.get(name) is not None
    }


def sampler(*, offline: bool, allow_pickle: bool) -> OwnSampling:
    """Return `own_sampling` under this access, reading each model's file once."""
    return cache(partial(own_sampling, offline=offline, allow_pickle=allow_pickle))
