"""Models of cells: found, checked, matched to each other, and each loaded once."""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spsbench.checkpoints.config import hidden_settings, read_config
from spsbench.engines.eager import Eager, UnsupportedModelError, context_of, logits_width
from spsbench.engines.quantization.layers import format_of
from spsbench.engines.session.recurrent import register_states
from spsbench.errors import DataError, SpsError, replace_fields
from spsbench.heads.families import OVERRIDES, head_part
from spsbench.heads.head import Head, mark_of
from spsbench.loop.drafter_context import OwnWeights, Weights
from spsbench.loop.guards import plan_of
from spsbench.loop.types import Engine
from spsbench.messages import announce_if_slow
from spsbench.models.chat import special_tokens
from spsbench.models.drafter_weights import load_head, own_weights
from spsbench.models.gguf.unpack import blocks_in_words, original_format
from spsbench.models.loader import materialise
from spsbench.models.source import ModelSource, source_of
from spsbench.models.third_party import open_config, silence
from spsbench.models.tokenizers import (
    IdTokenizer,
    check_same_tokens,
    difference,
    eos_ids,
    model_token_count,
    tokens_beyond,
)
from spsbench.models.translation.vocabulary import Vocabularies, Vocabulary
from spsbench.parallel.process_group import lost_rank_as_error
from spsbench.plugins import make, plug_in
from spsbench.settings.cell import WARP, Cell
from spsbench.settings.cell_from_options import DRAFT, TARGET
from spsbench.settings.execution import Access
from spsbench.settings.models import BLOCKS, ModelSpec
from spsbench.settings.processors import IN_CONFIGS
from spsbench.spec import Spec

Choices = dict[str, dict[str, Any]]
"""Choices of engines by timing, by model, dtype and engine."""

Made = TypeVar("Made")
FEW = 60  # characters of a setting in a line

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded models of a cell, checked against each other."""

    target: PreTrainedModel
    draft: PreTrainedModel | None  # where the drafter asks for a language model
    tokenizer: Any
    vocab_size: int  # tokens that both models know; padding rows are beyond
    eos: frozenset[int]
    folder: Path | None  # the target's
    draft_tokenizer: PreTrainedTokenizerBase | None = None  # where it is another one
    vocabularies: Vocabularies | None = None  # target's and draft's, where the drafter translates
    own: OwnWeights | None = None  # where the drafter asks for tensors of its own
    head: Head | None = None  # where it asks for a head in a known format
    clock: datetime | None = None  # the time given to a chat template; None: now

    @property
    def models(self) -> list[PreTrainedModel]:
        """Return the target and, if there is one, the draft model."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def limit(self) -> int | None:
        """Return the shortest context of target and draft, in tokens; None = unlimited."""
        limits = [limit for model in self.models if (limit := context_of(model)) is not None]
        return min(limits, default=None)


class ModelCache:
    """A loader of the models of resolved cells that keeps them for later cells.

    `access` is that to the hub, pickles and threads; without threads engines may choose. `choices`
    takes what engines choose by timing, and what is there already is taken over; `chosen` is called
    after each such choice. `clock` is the time given to chat templates, fixed in a run; None: now.
    """

    def __init__(
        self,
        access: Access = Access(),
        *,
        choices: Choices | None = None,
        chosen: Callable[[], None] = lambda: None,
        clock: datetime | None = None,
    ) -> None:
        self._access = access
        self.clock = clock
        self.choices: Choices = {} if choices is None else choices
        self.chosen = chosen
        self._kept: dict[Hashable, Any] = {}

    def adopt(self, spec: ModelSpec, model: PreTrainedModel, tokenizer: Any = None) -> None:
        """Keep a loaded model as that of `spec` for later loads, prepared in place for its engine.

        `tokenizer` None: tokens are numbers. DataError: the engine cannot run the model.
        """
        source, folder = source_of(spec, self._access), Path(spec.id)
        self._kept[source, "folder", spec] = folder
        self._kept[source, "tokenizer", folder] = tokenizer or IdTokenizer()
        located = LocatedModel(spec, source, folder, tokenizer)
        self._kept[source, spec.engine, folder] = self._prepared(model, spec.engine, located)

    @lost_rank_as_error()
    def load(self, cell: Cell) -> Loaded:
        """Return the models of `cell`, loaded once for all equal cells and checked as a pair.

        SpsError: they cannot be found, loaded or used together. Most checks precede all weights.
        """
        drafter, decoder = cell.drafter, plug_in("decoders", cell.decoder)
        plan = plan_of(drafter)
        wish = Wish(
            cell.target,
            cell.draft,
            cell.seed,
            plan.weights,
            decoder.runs_engines,
            plan.translates and decoder.rules is None,
            drafter if plan.weights is Weights.HEAD else None,
        )
        return replace(self._once(wish, partial(self._all, wish)), clock=self.clock)

    def open(self, cell: Cell) -> Any:
        """Return a `Loaded`; of a cell whose engine is elsewhere its `encoder`."""
        return self.encoder(cell) if cell.elsewhere else self.load(cell)

    def encoder(self, cell: Cell) -> "Outline":
        """Return an `Outline` with the target's tokenizer (None: it is served), without a limit."""
        target = cell.target
        tokenizer = None if target.served else self._find(target, cell.seed).tokenizer
        return Outline(tokenizer, None, self.clock)

    def outline(self, cell: Cell) -> "Outline":
        """Return tokenizer and shortest context of a cell's models, mostly without weights.

        Models whose configuration needs code of its own are loaded. Of a cell whose engine is
        elsewhere, the tokenizer alone, as `encoder`. SpsError: a model cannot be used.
        """
        if cell.elsewhere:
            return self.encoder(cell)
        has_draft_model = plan_of(cell.drafter).weights is Weights.MODEL
        located = [self._find(cell.target, cell.seed)]
        if has_draft_model and cell.draft:
            located.append(self._find_draft(cell.draft, cell.seed))
        if not all(plain_config(entry.folder) for entry in located):
            whole = self.load(cell)
            return Outline(whole.tokenizer, whole.limit, self.clock)
        configs = [open_config(entry.folder).get_text_config() for entry in located]
        limits = [getattr(config, "max_position_embeddings", None) for config in configs]
        limit = min((n for n in limits if n is not None), default=None)
        return Outline(located[0].tokenizer, limit, self.clock)

    def vocabularies(self, cell: Cell) -> Vocabularies | None:
        """Return target's and draft's vocabularies; None: equal, no draft, or random weights."""
        if cell.draft is None or cell.random:
            return None
        target = self._find(cell.target, cell.seed)
        return self._vocabularies(target, self._find_draft(cell.draft, cell.seed))

    def _all(self, wish: "Wish") -> Loaded:
        """Load what a wish names: target, and draft model, head or tensors of a drafter's own.

        DataError: other tokens than the target's where the drafter does not translate, or a token
        without a row. A head that was trained for other weights than the target's is noted.
        """
        target = self._find(wish.target, wish.seed)
        draft = wish.draft
        own_tensors = head = None
        with about_draft():
            if draft is not None and wish.drafter is not None:
                head = self._head(draft, wish.drafter, target)
                draft = None
            if draft is not None and wish.weights is Weights.OWN:
                own_tensors = self._once((draft, "own"), partial(own_weights, draft, self._access))
                draft = None
        draft_located = target if draft is None else self._find_draft(draft, wish.seed)
        both = self._vocabularies(target, draft_located) if wish.drafts_in_any else None
        if both is None and draft_located.folder != target.folder:
            check_same_tokens(target.tokenizer, draft_located.tokenizer)
        eos = eos_ids(target.folder, target.tokenizer)
        model = self._model(target, wish.runs_engines)
        if head is not None and head.target_mark not in (None, mark_of(model)):
            log.info(
                f"note: the head was trained for other weights than those of {target.spec.id}: "
                "fewer of its drafts may be kept, and the text is the target's all the same"
            )
        with about_draft():
            second = model if draft is None else self._model(draft_located, wish.runs_engines)
        size = model_token_count("target", logits_width(model), target.tokenizer)
        numbers = isinstance(target.tokenizer, IdTokenizer)
        tokenizer = target.tokenizer if numbers else draft_located.tokenizer
        of_draft = model_token_count("draft", logits_width(second), tokenizer)
        if both is not None:
            check_rows("target", target, model)
            check_rows("draft", draft_located, second)
        return Loaded(
            target=model,
            draft=None if draft is None else second,
            tokenizer=target.tokenizer,
            vocab_size=min(size, of_draft) if both is None else size,
            eos=eos,
            folder=target.folder,
            draft_tokenizer=None if both is None else draft_located.tokenizer,
            vocabularies=both,
            own=own_tensors,
            head=head,
        )

    def _vocabularies(self, target: "LocatedModel", draft: "LocatedModel") -> Vocabularies | None:
        """Return both vocabularies, made once per pair; None where the tokenizers do not differ."""

        def compared() -> Vocabularies | None:
            if difference(target.tokenizer, draft.tokenizer) is None:
                return None
            return Vocabularies(*(Vocabulary.of(located.tokenizer) for located in (target, draft)))

        if target.folder == draft.folder:
            return None
        return self._once(("vocabularies", target[1:3], draft[1:3]), compared)

    def _head(self, draft: ModelSpec, drafter: Spec, target: "LocatedModel") -> Head:
        """Return the head `draft` as `drafter` reads it, loaded once a target; SpsError: unfit."""
        config = read_config(target.folder) if (target.folder / "config.json").is_file() else {}
        drafter = head_part(drafter) or drafter
        answers = tuple((name, value) for name, value in drafter.args if name in OVERRIDES)
        make = partial(
            load_head,
            draft,
            self._access,
            drafter=drafter.name,
            overrides=dict(answers),
            target=(target.spec.id, config),
        )
        return self._once((draft, drafter.name, answers, target.folder), make)

    def _find(self, spec: ModelSpec, seed: int) -> "LocatedModel":
        source = source_of(spec, self._access, seed=seed)
        folder = self._once((source, "folder", spec), partial(source.locate, spec))
        tokenizer = self._once((source, "tokenizer", folder), partial(source.tokenizer, folder))
        return LocatedModel(spec, source, folder, tokenizer)

    def _find_draft(self, spec: ModelSpec, seed: int) -> "LocatedModel":
        with about_draft():
            return self._find(spec, seed)

    def _model(self, located: "LocatedModel", runs_engines: bool) -> PreTrainedModel:
        """Return a model, loaded once and prepared for its engine, if any; log a slow load."""
        spec = located.spec.engine if runs_engines else None
        key = located.source, spec, located.folder
        with announce_if_slow(f"loading {located.spec}"):
            return self._once(key, partial(self._load_for, spec, located))

    def _load_for(self, spec: Spec | None, located: "LocatedModel") -> PreTrainedModel:
        """Load a model and prepare it for an engine; None: for plain modules of transformers."""
        model = self._prepared(located.source.model(located.folder, mapped=True), spec, located)
        materialise(model)  # what the engine has not packed
        return model

    def _prepared(
        self, model: PreTrainedModel, spec: Spec | None, located: "LocatedModel"
    ) -> PreTrainedModel:
        """Prepare a model in place for the engine `spec`, None for `Eager`, and return it.

        Known `choices` are used; new ones kept, and `chosen` called once. DataError: unfit engine.
        """
        engine: Engine = Eager() if spec is None else make("engines", spec)
        name = f"{located.spec.id} {model.dtype} {spec}"
        try:
            with silence():  # transformers says of each kernel package that it is not there
                register_states(model)
            chosen = engine.prepare(
                model, known=self.choices.get(name), threads=self._access.threads
            )
        except UnsupportedModelError as error:
            raise DataError(
                f"{error} ({located.folder}): expected a decoder whose cache takes tokens back"
            ) from error
        if chosen and self.choices.get(name) != chosen:
            self.choices[name] = chosen
            self.chosen()
        return model

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._kept:
            self._kept[key] = make()
        value: Made = self._kept[key]
        return value


OF_DRAFT = {TARGET[field].name: f"`{setting.name}`" for field, setting in DRAFT.items()}
"""Option of the target -> the same of the draft model, as messages name it."""


@contextmanager
def about_draft() -> Iterator[None]:
    """Name the options of the draft model, not the target's, in errors of this block."""
    try:
        yield
    except SpsError as error:
        error.args = (replace_fields(str(error), OF_DRAFT.get),)
        raise


@dataclass(frozen=True, slots=True)
class Outline:
    """The properties of a cell's models that limit a prompt."""

    tokenizer: Any
    limit: int | None  # tokens; None = unlimited
    clock: datetime | None = None  # the time given to a chat template; None: now
    models: tuple[PreTrainedModel, ...] = ()  # none


class Wish(NamedTuple):
    """The key of loaded models: all that decides which are loaded, and how."""

    target: ModelSpec
    draft: ModelSpec | None
    seed: int  # for random weights
    weights: Weights
    runs_engines: bool
    drafts_in_any: bool  # its drafter does
    drafter: Spec | None = None  # a head's, which may resolve what its files leave open


class LocatedModel(NamedTuple):
    """A located model before its weights are loaded."""

    spec: ModelSpec
    source: ModelSource
    folder: Path
    tokenizer: Any


def check_rows(name: str, located: LocatedModel, model: PreTrainedModel) -> None:
    """Raise DataError for special tokens beyond the rows of a model, called `name` in messages."""
    if unused := tokens_beyond(located.tokenizer, logits_width(model)):
        raise DataError(
            f"the {name} has no row for the token {unused[0]} ({located.folder}): expected one "
            "for each, to translate between two vocabularies. Use `drafter` ngram"
        )


def plain_config(folder: Path) -> bool:
    """Return whether a folder has a config.json, and that names no code of its own (`auto_map`)."""
    return (folder / "config.json").is_file() and "auto_map" not in read_config(folder)


def pair_warnings(cell: Cell, loaded: Any, *, chat: bool) -> Iterator[str]:
    """Yield warnings about a cell's models: GGUF origin, slow draft, unmatched tokens, no EOS.

    `loaded` is a `Loaded`; no warning is of random models or an engine elsewhere. Ignored settings
    of the target's generation config are named, its sampling only without `chat`: chats apply it.
    """
    if cell.random or cell.elsewhere or loaded.folder is None:
        return
    target, draft = loaded.target, loaded.draft
    for name, model in zip(("target", "draft model"), loaded.models, strict=False):
        if (before := original_format(model.config.name_or_path)) is not None:
            blocks = blocks_in_words(model.config.name_or_path)
            as_stored = f"the blocks of {before} as they are: {blocks}"
            how = as_stored if format_of(model) == BLOCKS else f"dequantised from {before}"
            yield f"the {name}'s weights are {how}"
    if draft is not None:
        yield from draft_warnings(target, draft)
    if loaded.vocabularies is not None:
        yield f"the draft model has another tokenizer: {loaded.vocabularies.overlap}"
    rows = target.config.get_text_config().vocab_size
    if unused := tokens_beyond(loaded.tokenizer, rows):
        yield (
            f"the target has no row for {len(unused)} special tokens of the tokenizer, such as "
            f"{unused[0]}: they are never drawn"
        )
    if loaded.vocab_size < rows:
        padding = rows - loaded.vocab_size
        yield f"{padding} of the target's {rows} logits are no tokens and never drawn"
    hidden = hidden_settings(loaded.folder)
    if stops := hidden.pop("stop_strings", None):
        yield f"{_list_ignored({'stop_strings': stops})} (`stop` ends a text)"
    taken = (*IN_CONFIGS, *WARP)
    if others := {name: value for name, value in hidden.items() if name not in taken}:
        yield f"{_list_ignored(others)} (the distribution that is preserved has none of these)"
    if not chat and (sampling := {name: hidden[name] for name in taken if name in hidden}):
        yield f"{_list_ignored(sampling)} (a chat takes these)"
    if not loaded.eos:
        yield "the target has no end-of-text token: only `max_new_tokens` and `stop` end the text"


def _list_ignored(settings: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name}={str(value)[:FEW]}" for name, value in settings.items())
    return f"ignored from the target's generation_config: {listed}"


def draft_warnings(target: PreTrainedModel, draft: PreTrainedModel) -> Iterator[str]:
    """Yield a warning for a draft model of the target's size or more, and for a shorter context."""
    sizes = [model.num_parameters() for model in (target, draft)]
    if sizes[1] >= sizes[0]:
        yield (
            f"the draft model ({sizes[1]:,} parameters) is not smaller than the target "
            f"({sizes[0]:,}): it will not be faster"
        )
    limits = [context_of(model) for model in (target, draft)]
    if limits[1] is not None and (limits[0] is None or limits[1] < limits[0]):
        of_target = limits[0] if limits[0] is not None else "unlimited"
        yield (
            f"the draft model's context is {limits[1]} tokens, the target's {of_target}: "
            "beyond it the target goes on alone"
        )


def stop_warnings(cell: Cell, tokenizer: Any) -> Iterator[str]:
    """Yield a warning for each `stop` of `cell` that ends no text, as it names a special token.

    A stop that is such a name, and no more, is warned of only where the cell's engine is elsewhere.
    """
    special = special_tokens(tokenizer) if cell.stop else {}
    for stop in cell.stop:
        name = next((name for name in special if name and name in stop), None)
        if name is not None and name != stop:
            yield f"`stop` {stop!r} ends no text: {name} is a special token, which has none"
        elif name is not None and cell.elsewhere:
            yield f"`stop` {stop!r} may end no text: engines elsewhere write no special tokens"
