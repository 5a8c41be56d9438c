"""From a cell to a decoder: the one place where names become parts and models are loaded."""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spsbench.engines.eager import EagerLM, UnsupportedModelError, check_rollback
from spsbench.errors import DataError, UsageError
from spsbench.models.folder import check_folder, locate
from spsbench.models.loader import eos_ids, load_model, load_tokenizer
from spsbench.models.shapes import IdTokenizer, check_shape, locate_shape, model_of_shape
from spsbench.models.vocabulary import check_same, common_size
from spsbench.parts import arguments, part, plug_in
from spsbench.results import Cell, ModelRef, Spec
from spsbench.sampling import Warp
from spsbench.timing import Stopwatch, TimedDrafter, TimedLM
from spsbench.types import Decoder, Drawn, Engine

Kept = dict[Hashable, Any]
"""Models and tokenizers that are loaded already, for cells that share them."""

Choices = dict[str, dict[str, Any]]
"""What engines chose by timing, by model, dtype and engine."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models of a cell, fit for each other."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int  # tokens that both models know; padding rows are beyond
    eos: frozenset[int]
    folder: Any  # of the target

    @property
    def limit(self) -> int | None:
        """The shortest context of target and draft, in tokens; None = unlimited."""
        models = [model for model in (self.target, self.draft) if model is not None]
        limits = [limit for model in models if (limit := EagerLM(model).limit) is not None]
        return min(limits, default=None)


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
    known = cell.drafter.name in ("model", "none") and str(cell.verifier) == "sps"
    if not known or cell.k is None:
        raise UsageError(
            f"--decoder {cell.decoder} with --drafter {cell.drafter}, --verifier {cell.verifier}, "
            f"--schedule {cell.schedule}: that decoder has rules of its own. Expected drafter "
            "model, verifier sps and a constant K"
        )


def warp(cell: Cell) -> Warp:
    """The warp of `cell`."""
    return Warp(cell.temperature, cell.top_k, cell.top_p)


def load(
    cell: Cell,
    *,
    offline: bool = False,
    allow_pickle: bool = False,
    say: Callable[[str], None] = lambda line: None,
    kept: Kept | None = None,
    choices: Choices | None = None,
    threads: int | None = None,
) -> Loaded:
    """Find, check and load the models of a resolved cell; checks come before weights.

    Cells that are loaded with the same `kept` share what they have in common. What an engine chose
    by timing is added to `choices`; what is there already is taken over. `threads`: as the user
    asked.

    Raises:
        SpsError: a model that is missing, unfit, or does not go with the other one.
    """
    shelf: Kept = {} if kept is None else kept
    chosen: Choices = {} if choices is None else choices
    engine: Engine | None = None  # a library of its own runs the models as they are
    if "target" in inspect.signature(plug_in("decoders", cell.decoder)).parameters:
        engine = part("engines", cell.engine, {})

    def once(key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in shelf:
            shelf[key] = make()
        made: Made = shelf[key]
        return made

    def folder_of(ref: ModelRef) -> Any:
        options = {"trust_remote_code": cell.trust_remote_code, "allow_pickle": allow_pickle}
        if cell.random_weights:
            found = locate_shape(ref, offline=offline, say=say)
            check_shape(found)
            return found
        folder = locate(ref, offline=offline, say=say, **options)
        check_folder(folder, **options)
        return folder

    def model_in(folder: Any) -> PreTrainedModel:
        machine: dict[str, Any] = {
            "device": cell.device,
            "dtype": cell.dtype,
            "attention": cell.attention,
        }
        if cell.random_weights:
            model = model_of_shape(folder, seed=cell.seed, **machine)
        else:
            model = load_model(
                folder,
                trust_remote_code=cell.trust_remote_code,
                allow_pickle=allow_pickle,
                say=say,
                **machine,
            )
        try:
            check_rollback(model)
        except UnsupportedModelError as error:
            raise DataError(f"{error} ({folder}): expected a decoder-only transformer") from error
        name = f"{folder} {model.dtype} {cell.engine}"
        if engine is not None:
            choice = engine.prepare(model, known=chosen.get(name), threads=threads)
            chosen.update({name: choice} if choice else {})
        return model

    def kept_model(folder: Any) -> PreTrainedModel:
        machine = cell.device, cell.dtype, cell.attention, engine and cell.engine
        weights = ("random", cell.seed) if cell.random_weights else ("trained",)
        return once((str(folder), *machine, *weights), lambda: model_in(folder))

    target_folder = once(
        ("folder", cell.target, cell.random_weights), lambda: folder_of(cell.target)
    )
    draft_ref = cell.draft
    draft_folder = (
        once(("folder", draft_ref, cell.random_weights), lambda: folder_of(draft_ref))
        if draft_ref
        else None
    )
    if cell.random_weights:
        target = kept_model(target_folder)
        draft = kept_model(draft_folder) if draft_folder else None
        sizes = [m.config.get_text_config().vocab_size for m in (target, draft) if m is not None]
        numbers: Any = IdTokenizer()
        return Loaded(target, draft, numbers, min(sizes), frozenset(), target_folder)

    def tokenizer_in(folder: Any) -> PreTrainedTokenizerBase:
        read = load_tokenizer(folder, trust_remote_code=cell.trust_remote_code)
        if folder != target_folder:
            check_same(tokenizer, read)
        return read

    tokenizer = once(("tokenizer", str(target_folder)), lambda: tokenizer_in(target_folder))
    if draft_folder:
        once(("same", str(target_folder), str(draft_folder)), lambda: tokenizer_in(draft_folder))
    target = kept_model(target_folder)
    draft = kept_model(draft_folder) if draft_folder else None
    sizes = [m.config.get_text_config().vocab_size for m in (target, draft) if m is not None]
    vocab_size = common_size(sizes[0], sizes[-1], tokenizer)
    eos = eos_ids(target, tokenizer)
    return Loaded(target, draft, tokenizer, vocab_size, eos, target_folder)


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
    theirs = {"target_model": loaded.target, "draft_model": loaded.draft, "k": cell.k}
    decoder: Decoder = part("decoders", cell.decoder, mine | theirs)
    return Parts(decoder, draft_watch, target_watch, getattr(decoder, "live", True))
