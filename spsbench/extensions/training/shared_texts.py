"""The texts of a training by workers: a batch is a unit, and the driver writes the batches."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from spsbench.benchmark.worker_models import ModelWork
from spsbench.extensions.training.generation import Text, Writer
from spsbench.extensions.training.options import Training
from spsbench.extensions.training.prompts import in_chat
from spsbench.extensions.training.texts import Take
from spsbench.models.source import source_of
from spsbench.settings.execution import Access, Workers
from spsbench.settings.models import ModelSpec
from spsbench.workers.environment import environment
from spsbench.workers.map_units import check_complete, map_units

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextWorkers:
    """`extensions.training.texts.BatchWorkers` whose workers write; the driver keeps the texts."""

    workers: Workers
    target: ModelSpec
    options: Training
    access: Access

    def __call__(
        self, writer: Writer, missing: Sequence[int], take: Take, stop: Callable[[], bool]
    ) -> None:
        """Have the missing batches written, and take them as they come.

        Raises:
            UnavailableError: no worker, or no way to reach one.
            MismatchError: a worker has another environment.
            BrokenOffError: a batch that no worker could write; the others are taken.
        """
        given_up = []

        def give_up(unit: Batch, error: str) -> None:
            given_up.append(unit)
            log.info(f"gave up batch {unit.number} of the texts: {error}")

        log.info(f"{len(missing)} batches of texts on {self.workers.on}")
        map_units(
            self.workers,
            Texts(
                target=self.target,
                options=self.options,
                access=self.access,
                dtype=writer.dtype,
                expected=environment(folder_of(self.target, self.access)),
            ),
            (Batch(index, writer.prompts_or_count(index)) for index in missing),
            threads=self.access.threads,
            device=self.target.device,
            take=lambda unit, texts: take(unit.number, texts),
            give_up=give_up,
            stop=stop,
        )
        check_complete(len(given_up), "batches of texts that no worker could write")


class Batch(NamedTuple):
    """Texts that are written together."""

    number: int
    prompts_or_count: list[list[int]] | int  # by the driver's `Writer`


@dataclass(frozen=True, kw_only=True)
class Texts(ModelWork):
    """The texts of a batch: the target writes, as `extensions.training.generation.Writer` does.

    Args:
        dtype: of the driver's target: a text is a sample of the target in that dtype.
    """

    target: ModelSpec
    options: Training
    dtype: torch.dtype

    @property
    def folders(self) -> dict[ModelSpec, Path]:
        """Return the folder of the target."""
        return folder_of(self.target, self.access)

    def __call__(self, unit: Batch) -> list[Text]:
        """Write the texts of a batch."""
        return self._writer.batch(unit.number, unit.prompts_or_count)

    @cached_property
    def _writer(self) -> Writer:
        source, options = source_of(self.target, self.access), self.options
        folder = source.locate(self.target)
        model, tokenizer = source.model(folder).to(self.dtype), source.tokenizer(folder)
        vocab, eos = source.vocab_size(model, model, tokenizer), source.eos(folder, tokenizer)
        chat = in_chat(tokenizer, options.chat)
        return Writer(model, tokenizer, eos, vocab, options, chat, ())


def folder_of(target: ModelSpec, access: Access) -> dict[ModelSpec, Path]:
    """Return the folder of the target, as `environment` takes it."""
    return {target: source_of(target, access).locate(target)}
