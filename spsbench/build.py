"""From a cell to a decoder: the one place where names become parts."""

import inspect
from dataclasses import replace
from typing import Any, NamedTuple

from spsbench.errors import UsageError
from spsbench.loading import Loaded
from spsbench.parts import arguments, part, plug_in
from spsbench.results import Cell, Spec
from spsbench.sampling import Warp
from spsbench.timing import Stopwatch, TimedDrafter, TimedLM
from spsbench.types import Decoder, Drawn, Engine


class Parts(NamedTuple):
    """A decoder and the stopwatches around its draft and its target."""

    decoder: Decoder
    draft: Stopwatch
    target: Stopwatch
    live: bool  # its rounds come while it runs, and have no prefill in them


def resolve(cell: Cell) -> Cell:
    """Check every name, argument and pairing of `cell` before a model is touched.

    An `auto` verifier becomes sps for sampled chains and match for drafts that come by rule.

    Raises:
        UsageError: an unknown name or argument, a draft model without use or missing, a pairing
            that would not give the target's law, impossible sampling settings.
    """
    drafter = plug_in("drafters", cell.drafter)
    if cell.verifier.name == "auto":
        sampled_chain = drafter.drawn is Drawn.IID and not drafter.tree
        cell = replace(cell, verifier=Spec("sps" if sampled_chain else "match"))
    verifier = part("verifiers", cell.verifier, {})
    if reason := verifier.refuses(drafter.drawn, drafter.tree):
        raise UsageError(f"--drafter {cell.drafter} with --verifier {cell.verifier}: {reason}")

    needs_model = "lm" in inspect.signature(drafter).parameters
    if needs_model and cell.draft is None:
        raise UsageError(f"--drafter {cell.drafter}: expected a draft model. Name it with --draft")
    if cell.draft is not None and not needs_model:
        raise UsageError(
            f"--draft {cell.draft.id} with --drafter {cell.drafter}: that drafter uses no model. "
            "Leave out one of the two"
        )
    arguments(cell.drafter, drafter)
    part("schedules", cell.schedule, {})
    part("engines", cell.engine, {})
    decoder = plug_in("decoders", cell.decoder)
    arguments(cell.decoder, decoder)
    if "verifier" not in inspect.signature(decoder).parameters:
        _refuse_unheard(cell)
    try:
        warp(cell)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return cell


def _refuse_unheard(cell: Cell) -> None:
    """A decoder that is another library drafts and verifies in its own way only."""
    known = {"model": "sps", "none": "sps", "ngram": "match"}.get(cell.drafter.name)
    if known != str(cell.verifier) or cell.k is None:
        raise UsageError(
            f"--decoder {cell.decoder} with --drafter {cell.drafter}, --verifier {cell.verifier}, "
            f"--schedule {cell.schedule}: that decoder has rules of its own. Expected drafter "
            "model with verifier sps or ngram with match, and a constant K"
        )


def warp(cell: Cell) -> Warp:
    """The warp of `cell`."""
    return Warp(cell.temperature, cell.top_k, cell.top_p)


def build(cell: Cell, loaded: Loaded) -> Parts:
    """A decoder with fresh sessions over the loaded models, under stopwatches."""
    engine: Engine = part("engines", cell.engine, {})
    place = loaded.target.device  # `cell.device` may be "auto"
    draft_watch, target_watch = Stopwatch(place), Stopwatch(place)

    given: dict[str, Any] = {}
    if loaded.draft is not None:
        given["lm"] = engine.session(loaded.draft, vocab_size=loaded.vocab_size)
    drafter = part("drafters", cell.drafter, given)
    size, layers = loaded.vocab_size, drafter.layers
    target = engine.session(loaded.target, vocab_size=size, layers=layers)
    mine = {
        "target": TimedLM(target, target_watch),
        "drafter": TimedDrafter(drafter, draft_watch),
        "verifier": part("verifiers", cell.verifier, {}),
        "schedule": part("schedules", cell.schedule, {}),
    }
    theirs = {
        "target_model": loaded.target,
        "draft_model": loaded.draft,
        "k": cell.k,
        "vocab_size": loaded.vocab_size,
    }
    if cell.drafter.name == "ngram":
        theirs["lookup"] = dict(cell.drafter.args).get("n", 2)
    if loaded.draft_tokenizer is not None:
        theirs |= {"tokenizer": loaded.tokenizer, "assistant_tokenizer": loaded.draft_tokenizer}
    decoder: Decoder = part("decoders", cell.decoder, mine | theirs)
    return Parts(decoder, draft_watch, target_watch, getattr(decoder, "live", True))
