"""From a cell to a decoder: the one place where names become parts and models are loaded."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spsbench.engines.eager import UnsupportedModelError, check_rollback
from spsbench.errors import DataError, UsageError
from spsbench.models.folder import check_folder, locate
from spsbench.models.loader import eos_ids, load_model, load_tokenizer
from spsbench.models.vocabulary import check_same, common_size
from spsbench.registry import Kind, find
from spsbench.results import Cell, ModelRef, Scalar, Spec
from spsbench.sampling import Warp
from spsbench.timing import Stopwatch, TimedDrafter, TimedLM
from spsbench.types import LM, Decoder, Drawn

INJECTED = ("lm",)  # constructor parameters that are given, not named in a spec


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models of a cell, fit for each other."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int  # tokens that both models know; padding rows are beyond
    eos: frozenset[int]
    folder: Any  # of the target


class Parts(NamedTuple):
    """A decoder and the stopwatches around its draft and its target."""

    decoder: Decoder
    draft: Stopwatch
    target: Stopwatch


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
    plug_in("engines", cell.engine)
    plug_in("decoders", cell.decoder)
    try:
        warp(cell)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return cell


def warp(cell: Cell) -> Warp:
    """The warp of `cell`."""
    return Warp(cell.temperature, cell.top_k, cell.top_p)


def load(
    cell: Cell,
    *,
    offline: bool = False,
    allow_pickle: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Loaded:
    """Find, check and load the models of a resolved cell; checks come before weights.

    Raises:
        SpsError: a model that is missing, unfit, or does not go with the other one.
    """

    def folder_of(ref: ModelRef) -> Any:
        options = {"trust_remote_code": cell.trust_remote_code, "allow_pickle": allow_pickle}
        folder = locate(ref, offline=offline, say=say, **options)
        check_folder(folder, **options)
        return folder

    def model_in(folder: Any) -> PreTrainedModel:
        model = load_model(
            folder,
            device=cell.device,
            dtype=cell.dtype,
            attention=cell.attention,
            trust_remote_code=cell.trust_remote_code,
            allow_pickle=allow_pickle,
            say=say,
        )
        try:
            check_rollback(model)
        except UnsupportedModelError as error:
            raise DataError(f"{error} ({folder}): expected a decoder-only transformer") from error
        return model

    target_folder = folder_of(cell.target)
    draft_folder = folder_of(cell.draft) if cell.draft else None
    tokenizer = load_tokenizer(target_folder, trust_remote_code=cell.trust_remote_code)
    if draft_folder:
        other = load_tokenizer(draft_folder, trust_remote_code=cell.trust_remote_code)
        check_same(tokenizer, other)

    target = model_in(target_folder)
    draft = model_in(draft_folder) if draft_folder else None
    sizes = [m.config.get_text_config().vocab_size for m in (target, draft) if m is not None]
    vocab_size = common_size(sizes[0], sizes[-1], tokenizer)
    eos = eos_ids(target, tokenizer)
    return Loaded(target, draft, tokenizer, vocab_size, eos, target_folder)


def build(cell: Cell, loaded: Loaded) -> Parts:
    """A decoder with fresh sessions over the loaded models, under stopwatches."""
    engine = plug_in("engines", cell.engine)
    place = loaded.target.device  # `cell.device` may be "auto"
    draft_watch, target_watch = Stopwatch(place), Stopwatch(place)

    given: dict[str, Any] = {}
    if loaded.draft is not None:
        given["lm"] = engine(loaded.draft, vocab_size=loaded.vocab_size)
    drafter = part("drafters", cell.drafter, given)
    target: LM = engine(loaded.target, vocab_size=loaded.vocab_size, layers=drafter.layers)
    decoder: Decoder = plug_in("decoders", cell.decoder)(
        target=TimedLM(target, target_watch),
        drafter=TimedDrafter(drafter, draft_watch),
        verifier=part("verifiers", cell.verifier, {}),
        schedule=part("schedules", cell.schedule, {}),
    )
    return Parts(decoder, draft_watch, target_watch)


def part(kind: Kind, spec: Spec, given: Mapping[str, Any]) -> Any:
    """The plug-in that `spec` names, made with its arguments and those of `given` that it takes."""
    maker = plug_in(kind, spec)
    takes = inspect.signature(maker).parameters
    injected = {name: value for name, value in given.items() if name in takes}
    try:
        return maker(**injected, **arguments(spec, maker))
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from error


def plug_in(kind: Kind, spec: Spec) -> Any:
    """The class that `spec` names."""
    try:
        return find(kind, spec.name).load()
    except KeyError as error:
        raise UsageError(f"{error.args[0]}. See them with `sps list`") from error


def arguments(spec: Spec, maker: Any) -> dict[str, Scalar]:
    """The arguments of `spec`, checked against the constructor's names and types."""
    parameters = inspect.signature(maker).parameters
    known = {name: p for name, p in parameters.items() if name not in INJECTED}
    typed: dict[str, Scalar] = {}
    for name, value in spec.args:
        if name not in known:
            names = ", ".join(known) or "no arguments"
            raise UsageError(f"{spec}: {spec.name} has no {name!r}: expected {names}")
        wanted = known[name].annotation
        if wanted is float and type(value) is int:
            value = float(value)
        if isinstance(wanted, type) and type(value) is not wanted:
            raise UsageError(f"{spec}: {name} is {value!r}: expected {wanted.__name__}")
        typed[name] = value
    return typed
