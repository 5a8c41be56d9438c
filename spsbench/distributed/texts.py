"""The texts of a training by workers: a batch is a unit, and the driver writes them down."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch

from spsbench.distributed.crew import workers_of
from spsbench.distributed.environment import environment
from spsbench.distributed.greeting import greeting
from spsbench.distributed.lacking import check_whole
from spsbench.distributed.protocol import Hello, Work
from spsbench.distributed.same import Same
from spsbench.distributed.scheduler import Group, Ledger, Scheduler
from spsbench.models.source import Source, source_of
from spsbench.settings.commands import Training
from spsbench.settings.execution import Access, Crew
from spsbench.settings.models import ModelSpec
from spsbench.training.text.asking import in_chat
from spsbench.training.text.partial import Take
from spsbench.training.text.writing import Text, Writer

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Texts that are written together."""

    number: int
    given: list[list[int]] | int  # as the driver's writer has it


@dataclass(frozen=True, kw_only=True)
class Writing:
    """A hand: the target writes, as `train.text.writing` has it.

    Args:
        dtype: of the driver's target: a text is a sample of it in those numbers.
        threads: of the processor; None = torch's choice.
        beside: workers on one machine.
    """

    target: ModelSpec
    asked: Training
    access: Access
    dtype: torch.dtype
    threads: int | None
    beside: int = 1

    def hello(self) -> Hello:
        """Check what is here, before the target is loaded.

        Raises:
            SpsError: it cannot be had here.
        """
        return greeting(
            folder_of(self.target, self._source),
            threads=self.threads,
            beside=self.beside,
            device=self.target.device,
        )

    def work(self, units: Sequence[Batch]) -> Work:
        """The texts of each batch."""
        return Work([self._writer.batch(each.number, each.given) for each in units])

    @property
    def _source(self) -> Source:
        return source_for(self.target, self.access)

    @cached_property
    def _writer(self) -> Writer:
        source, asked = self._source, self.asked
        folder = source.locate(self.target)
        model, tokenizer = source.model(folder).to(self.dtype), source.tokenizer(folder)
        vocab, eos = source.vocab_size(model, model, tokenizer), source.eos(model, tokenizer)
        chat = in_chat(tokenizer, asked.chat)
        return Writer(model, tokenizer, eos, vocab, asked, chat, ())


class Written:
    """`train.text.partial.Hands`: one driver writes down what workers' targets wrote.

    Args:
        crew: who works.
    """

    def __init__(self, crew: Crew, target: ModelSpec, asked: Training, access: Access) -> None:
        self.crew, self.target, self.asked = crew, target, asked
        self.access = access
        self._same = Same(lambda: environment(folder_of(target, source_for(target, access))))

    def __call__(
        self, writer: Writer, missing: Sequence[int], take: Take, stop: Callable[[], bool]
    ) -> None:
        """Have the missing batches written, and take them as they come.

        Raises:
            UnavailableError: nobody to work, or no way to reach them.
            MismatchError: a worker has another environment.
            BrokenOffError: a batch that no worker could write; the others are taken.
        """
        given, lacking = self.target, list[int]()

        def taken(worker: str, unit: Batch, texts: list[Text]) -> None:
            take(unit.number, texts)

        def give_up(unit: Batch, error: str) -> None:
            lacking.append(unit.number)
            log.info(f"gave up batch {unit.number} of the texts: {error}")

        def lost(worker: str, reason: str) -> None:
            log.info(f"note: {worker} is lost ({reason}): what it was at is written again")

        def joined(worker: str, hello: Hello) -> None:
            self._same.check(hello)

        ledger = Ledger(take=taken, give_up=give_up, joined=joined, lost=lost)
        units = (Batch(index, writer.given(index)) for index in missing)
        opener = partial(
            Writing, target=given, asked=self.asked, access=self.access, dtype=writer.dtype
        )
        with workers_of(self.crew, opener, self.access.threads, given.device) as workers:
            log.info(f"{len(missing)} batches of texts on {self.crew.on}")
            Scheduler(workers, [Group(len(missing), units)], ledger).run(stop)
        check_whole(len(lacking), "batches of texts that no worker could write")


def source_for(target: ModelSpec, access: Access) -> Source:
    """Where the target comes from; what there is to say of it the driver has said."""
    return source_of(
        target,
        seed=0,
        offline=access.offline,
        allow_pickle=access.allow_pickle,
    )


def folder_of(target: ModelSpec, source: Source) -> dict[ModelSpec, Path]:
    """As `environment` takes it."""
    return {target: source.locate(target)}
