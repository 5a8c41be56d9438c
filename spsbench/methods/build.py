"""Assembly of a decoder from a cell and loaded models: names become parts here only."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from spsbench.engines.eager import UnsupportedModelError
from spsbench.engines.quantization.layers import quantise
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.session.layer_skip import view
from spsbench.engines.session.partial_cache import partial_session
from spsbench.errors import DataError, UsageError
from spsbench.loop.batch import DRAFT, TARGET, Batch, BatchedLM
from spsbench.loop.constraint import Constraint
from spsbench.loop.decoder import Decoder
from spsbench.loop.drafter_context import (
    Cache,
    CachePart,
    Made,
    Network,
    TargetParts,
    Together,
    Variant,
    Weights,
    alone,
)
from spsbench.loop.guards import plan_of
from spsbench.loop.types import LM, Drafter, Engine, Schedule, Verifier
from spsbench.methods.processors import processors_of
from spsbench.models.cache import Loaded, ModelCache
from spsbench.parallel.process_group import InStepLM
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.settings.models import QUANTISED
from spsbench.settings.processors import Processors

log = logging.getLogger(__name__)

_MEMORIES: WeakKeyDictionary[PreTrainedModel, dict[tuple[str, object], Any]] = WeakKeyDictionary()
"""The state that drafters keep from generation to generation, by target, cell and maker."""


def load_cell(cell: Cell, access: Access, model_cache: ModelCache) -> Any:
    """Return a cell's models from the cache; limit torch to their threads if `access` has none."""
    loaded = model_cache.open(cell)
    if access.threads is None and not cell.elsewhere:
        _limit_threads(loaded.target)
    return loaded


def use_threads(threads: int | None) -> None:
    """Set torch's number of threads; None leaves it as it is."""
    if threads is not None:
        torch.set_num_threads(threads)


def _limit_threads(model: PreTrainedModel) -> None:
    """Lower torch's threads to the number that an engine chose for `model` on a busy machine.

    Does nothing where no other program was busy then, or torch has no more threads; logs a change.
    With more of them an operator over a large vocabulary waits for a thread without a core.
    """
    choice = engine_config_of(model)
    if choice is None or choice.threads is None or not choice.beside:
        return
    if choice.threads < torch.get_num_threads():
        torch.set_num_threads(choice.threads)
        log.info(
            f"note: threads busy with other programs: {choice.beside}; "
            f"threads of this process: {choice.threads}"
        )


def build_decoder(
    cell: Cell, loaded: Any, batch: Batch | None = None, constraint: Constraint | None = None
) -> Decoder:
    """Return a new decoder of the cell's kind, with sessions of its own over the loaded models.

    `loaded` is what `ModelCache.open` returned for the cell; `batch` is the batch that the
    generation is a row of (None: it runs alone); `constraint` masks tokens of the generation (None:
    no mask). Raises UsageError or PlugInError where `plugins.make` does.
    """
    context = LoadedDecoderContext(cell, loaded, batch, constraint)
    decoder: Decoder = make("decoders", cell.decoder, context)
    return decoder


class LoadedDecoderContext:
    """`DecoderContext` for the models of a cell: fresh sessions over shared weights.

    Of a cell whose engine is elsewhere it has the tokenizer alone. A given `schedule` is used in
    place of the cell's.
    """

    def __init__(
        self,
        cell: Cell,
        loaded: Any,
        batch: Batch | None = None,
        constraint: Constraint | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.cell, self._loaded, self.batch, self.constraint = cell, loaded, batch, constraint
        self.tokenizer: Any = loaded.tokenizer
        self._session: LM | None = None  # the target's, once it is open
        self._schedule = schedule
        if not cell.elsewhere:
            self.target_model, self.draft_model = loaded.target, loaded.draft
            self.vocab_size: int = loaded.vocab_size

    @cached_property
    def processors(self) -> Processors | None:
        """Return the processors of the cell's texts, in the target's tokens."""
        return processors_of(self.cell, self._loaded)

    def drafter(self) -> Drafter:
        """Make the cell's drafter; it sees the session that `target` opened last, also later."""
        context = LoadedDrafterContext(
            self.cell, self._loaded, self.batch, lambda: self._session, self.constraint is not None
        )
        drafter: Drafter = make("drafters", self.cell.drafter, context)
        return drafter

    def target(self, layers: tuple[int, ...]) -> LM:
        """Open a session that returns `layers` of the target, and show it to the drafters made."""
        engine: Engine = make("engines", self.cell.target.engine)
        session = engine.session(self.target_model, vocab_size=self.vocab_size, layers=layers)
        self._session = session
        return in_row(session, self.batch, TARGET, self.cell)

    def verifier(self) -> Verifier:
        """Make the cell's verifier."""
        verifier: Verifier = make("verifiers", self.cell.verifier)
        return verifier

    def schedule(self) -> Schedule:
        """Return the given schedule, else make the cell's."""
        schedule: Schedule = self._schedule or make("schedules", self.cell.schedule)
        return schedule


class LoadedDrafterContext:
    """`DrafterContext` for the models of a cell.

    `target_session` returns the session of the loop; None: there is no loop. The attribute
    `together` makes a pass with the other rows of the batch that draft.
    """

    def __init__(
        self,
        cell: Cell,
        loaded: Loaded,
        batch: Batch | None = None,
        target_session: Callable[[], LM | None] | None = None,
        constrained: bool = False,
    ) -> None:
        self.vocab_size = loaded.vocab_size
        self.tokenizer: Any = loaded.tokenizer
        self.vocabularies: Any = loaded.vocabularies
        self._cell, self._loaded, self._batch = cell, loaded, batch
        self._plan = plan_of(cell.drafter)
        self._target_session, self.constrained = target_session, constrained
        self.together: Together = alone if batch is None else partial(batch.ask, DRAFT)
        self._name = str(cell.drafter)

    def session(self) -> LM:
        """Open a session with the draft model, in its own token ids, in a row of any batch.

        UsageError: the drafter's plan names no draft model.
        """
        self._check(self._plan.weights is Weights.MODEL, "a draft model", "weights")
        draft: Any = self._cell.draft  # which every resolved cell has whose drafter needs one
        engine: Engine = make("engines", draft.engine)
        both = self._loaded.vocabularies
        size = self.vocab_size if both is None else len(both.draft.bytes_of)
        lm = engine.session(self._loaded.draft, vocab_size=size)
        return in_row(lm, self._batch, DRAFT, self._cell)

    def own(self) -> Any:
        """Return the `OwnWeights` of the folder that `draft` names; UsageError if not planned."""
        self._check(self._plan.weights is Weights.OWN, "weights of its own", "weights")
        return self._loaded.own

    def head(self) -> Any:
        """Return the `Head` that `draft` names; UsageError if not planned."""
        self._check(self._plan.weights is Weights.HEAD, "a head", "weights")
        return self._loaded.head

    def network(self, make_network: Callable[[], Network]) -> Network:
        """Return the network that `make_network` makes, once for a head and the draft's engine.

        The first call quantises it as the draft says, has the engine pack it, and keeps it with the
        head; later calls ignore their `make_network`. Without head or draft each makes a new one.
        """
        draft, head = self._cell.draft, self._loaded.head
        if draft is None or head is None:
            return make_network()
        key = f"{draft.engine} {draft.weights}"
        if key not in head.kept:
            network = make_network()
            if draft.quantised in QUANTISED:  # a head has no blocks of a GGUF file
                quantise(network, draft.quantised)
            pack = getattr(make("engines", draft.engine), "pack", None)
            if pack is not None:
                pack(network)
            head.kept[key] = network
        kept: Network = head.kept[key]
        return kept

    def target(self) -> TargetParts:
        """Return the target's embeddings, head and configuration; UsageError: not in the plan."""
        self._check(self._plan.target, "parts of the target", "uses_target")
        return TargetParts.of(self._loaded.target, self.vocab_size)

    def cache(self, most: int | None = None) -> Cache:
        """Make a preallocated cache for the drafter's own layers."""
        return PreallocatedCache(most)

    def variant(self, variant: Variant) -> LM:
        """Open a session with the target less the layers of `variant`; errors as of `partial`."""
        engine = self._target_engine("a variant of the target")
        with self._named():
            model = view(self._loaded.target, variant)
        lm = engine.session(model, vocab_size=self.vocab_size)
        return in_row(lm, self._batch, DRAFT, self._cell)

    def partial(self, part: CachePart) -> LM:
        """Open a session with the target over `part` of its cache, in a row of the batch if any.

        UsageError: the drafter's plan leaves the target out, or sinks and window of `part` reach
        the target's context. What the engine refuses is a UsageError or DataError with the
        drafter's name.
        """
        engine = self._target_engine("a part of the target's cache")
        model, size, limit = self._loaded.target, self.vocab_size, self._loaded.limit
        if limit is not None and (rows := part.sinks + part.window) >= limit:
            raise UsageError(
                f"`drafter` {self._name} reads {rows} tokens: expected fewer than the "
                f"target's context of {limit}, since the draft would be the target. "
                "Give a smaller window"
            )
        new_session = partial(engine.session, model, vocab_size=size)
        with self._named():
            lm = partial_session(model, new_session, part, self._target_session, size)
        return in_row(lm, self._batch, DRAFT, self._cell)

    def _target_engine(self, what: str) -> Engine:
        """Return the target's engine; UsageError, which says `what`: the plan has no target."""
        self._check(self._plan.target, what, "uses_target")
        engine: Engine = make("engines", self._cell.target.engine)
        return engine

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the drafter in UsageErrors of the block; UnsupportedModelError becomes DataError."""
        try:
            yield
        except UsageError as error:
            raise UsageError(f"`drafter` {self._name}: {error}") from error
        except UnsupportedModelError as error:
            raise DataError(f"`drafter` {self._name}: {error}") from error

    def memory(self, make_memory: Callable[[], Made]) -> Made:
        """Return what this `make_memory` made when it was first given for this cell and target.

        It lasts as long as the target, or until `forget_memories`. In a batch every call returns a
        new one, since a text must not depend on its neighbours.
        """
        if self._batch is not None:
            return make_memory()
        kept = _MEMORIES.setdefault(self._loaded.target, {})
        key = self._cell.id, make_memory
        if key not in kept:
            kept[key] = make_memory()
        memory: Made = kept[key]
        return memory

    def _check(self, planned: bool, what: str, field: str) -> None:
        if not planned:
            raise UsageError(
                f"drafter {self._name} asked for {what}: expected its plan to name it ({field})"
            )


def in_row(lm: LM, batch: Batch | None, order: int, cell: Cell) -> LM:
    """Return `lm` as a row of `batch`, if there is one; if ranks share, with rank 0's scores."""
    lm = lm if batch is None else BatchedLM(lm, batch, order)
    return InStepLM(lm) if cell.ranks > 1 else lm


def forget_memories() -> None:
    """Drop all memories, so that a benchmark measures none of the runs before it."""
    _MEMORIES.clear()
