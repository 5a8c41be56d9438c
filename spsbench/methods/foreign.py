"""A draft model whose tokenizer is not the target's: who drafts with it, where nobody said it."""

import logging

from spsbench.loop.site import Drawn
from spsbench.methods.resolve import resolve
from spsbench.models.cache import ModelCache
from spsbench.plugins import make, plug_in
from spsbench.settings.cell import AUTO, Cell
from spsbench.spec import Spec

log = logging.getLogger(__name__)

LARGE = 0.5  # share of a sample text's tokens that both have
MODEL, SHARED, STRINGS = Spec("model"), Spec("tli"), Spec("slem")


def settled(cell: Cell, model_cache: ModelCache) -> Cell:
    """The resolved cell; where `model` would draft in another vocabulary, by tokens or by strings.

    By shared tokens where the cell samples and they are many, else by strings. A rule that was
    asked for and cannot follow a draft by strings decides for shared tokens.

    Raises:
        SpsError: as `resolve`, and for tokenizers that cannot be read.
    """
    found = resolve(cell)
    decoder = plug_in("decoders", cell.method.decoder)
    if found.method.drafter != MODEL or decoder.rules is not None:
        return found
    both = model_cache.vocabularies(found)
    if both is None:
        return found
    asked = cell.method.verifier
    by_law = asked != AUTO and make("verifiers", asked).refuses(Drawn.POINT, False) is not None
    sampled = found.sampling.temperature > 0
    shared = by_law or (sampled and both.overlap.text >= LARGE)
    drafter = SHARED if shared else STRINGS
    ways = {SHARED: "by the tokens that both models have", STRINGS: "by strings"}
    other = STRINGS if shared else SHARED
    log.info(
        f"note: drafting {ways[drafter]} (--drafter {drafter}); {ways[other]}: --drafter {other}"
    )
    return resolve(cell.but(drafter=drafter))
