"""The models of cells: found, checked, fit for each other, and each loaded once."""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spsbench.engines.eager import Eager, UnsupportedModelError
from spsbench.errors import DataError
from spsbench.model_limits import context_of, rows_of
from spsbench.models.source import Source, source_of
from spsbench.parts import part, plug_in
from spsbench.results import Cell, ModelRef, Spec
from spsbench.types import Engine

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
    folder: Path  # of the target
    draft_tokenizer: PreTrainedTokenizerBase | None = None  # where it is another one

    @property
    def limit(self) -> int | None:
        """The shortest context of target and draft, in tokens; None = unlimited."""
        models = [model for model in (self.target, self.draft) if model is not None]
        limits = [limit for model in models if (limit := context_of(model)) is not None]
        return min(limits, default=None)


class Shelf:
    """Loads the models of resolved cells, and keeps them for the cells that share them.

    Args:
        offline: take nothing from the network.
        allow_pickle: read pickled weights where there are no safetensors.
        threads: of the processor, as the user asked; None = engines may choose.
        choices: takes what engines choose by timing; what is there already is taken over.
        say: is told, a line each, what a user should know of a download or of the memory.
    """

    def __init__(
        self,
        *,
        offline: bool = False,
        allow_pickle: bool = False,
        threads: int | None = None,
        choices: Choices | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._threads = threads
        self._choices: Choices = {} if choices is None else choices
        self._options: dict[str, Any] = {
            "offline": offline,
            "allow_pickle": allow_pickle,
            "say": say,
        }
        self._kept: dict[Hashable, Any] = {}

    def load(self, cell: Cell) -> Loaded:
        """The models of `cell`; every check comes before the first weights.

        Raises:
            SpsError: a model that is missing, unfit, or does not go with the other one.
        """
        source = source_of(cell, **self._options)
        refs = [ref for ref in (cell.target, cell.draft) if ref is not None]
        takes = inspect.signature(plug_in("decoders", cell.decoder)).parameters
        translates = "assistant_tokenizer" in takes
        engine = cell.engine if "target" in takes else None  # else it runs the models as they are
        return self._once(
            (source, translates, engine, *refs),
            partial(self._all, source, refs, translates, engine),
        )

    def _all(
        self, source: Source, refs: list[ModelRef], translates: bool, engine: Spec | None
    ) -> Loaded:
        folders = [self._once((source, "folder", ref), partial(source.locate, ref)) for ref in refs]
        tokenizers = [
            self._once((source, "tokenizer", folder), partial(source.tokenizer, folder))
            for folder in folders
        ]
        paired = folders[0] != folders[-1]
        if paired and not translates:
            source.check_same(tokenizers[0], tokenizers[-1])
        models = [
            self._once((source, engine, folder), partial(self._model, source, ref, folder, engine))
            for ref, folder in zip(refs, folders, strict=True)
        ]
        target, draft = models[0], models[1] if len(models) == 2 else None
        # transformers translates between two vocabularies where their models' rows differ
        foreign = paired and translates and rows_of(target) != rows_of(models[-1])
        if paired and translates and not foreign:
            source.check_same(tokenizers[0], tokenizers[-1])
        return Loaded(
            target,
            draft,
            tokenizers[0],
            source.vocab_size(target, target if foreign else models[-1], tokenizers[0]),
            source.eos(target, tokenizers[0]),
            folders[0],
            tokenizers[-1] if foreign else None,
        )

    def _model(
        self, source: Source, ref: ModelRef, folder: Path, spec: Spec | None
    ) -> PreTrainedModel:
        """A model for one engine alone: another must not be timed over weights that it packed."""
        model = source.model(folder)
        engine: Engine = Eager() if spec is None else part("engines", spec, {})
        name = f"{ref.id} {model.dtype} {spec}"
        try:
            chosen = engine.prepare(model, known=self._choices.get(name), threads=self._threads)
        except UnsupportedModelError as error:
            raise DataError(f"{error} ({folder}): expected a decoder-only transformer") from error
        self._choices |= {name: chosen} if chosen else {}
        return model

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._kept:
            self._kept[key] = make()
        made: Made = self._kept[key]
        return made
