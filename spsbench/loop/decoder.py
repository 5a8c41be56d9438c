"""The decoder protocol: a decoder runs a whole generation over the parts of a cell."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.batch import Batch
from spsbench.loop.constraint import Constraint
from spsbench.loop.types import LM, Drafter, Limits, NoiseStream, Round, Schedule, Stop, Verifier
from spsbench.settings.cell import Cell, CellRequest
from spsbench.settings.processors import Processors


class EnginePrompt(NamedTuple):
    """A prompt for an engine that has the models elsewhere."""

    content: str | Sequence[Mapping[str, str]]  # text, or messages with role and content
    ids: Sequence[int] | None = None  # where a tokenizer is here
    name: str = ""  # the name of its sample, for messages


class RefusedPromptError(DataError):
    """A prompt that an engine does not continue; others it may."""


class DecoderContext(Protocol):
    """The parts of a cell, made on demand for a decoder."""

    cell: Cell
    batch: Batch | None  # the batch that the generation is a row of
    target_model: Any  # as loaded; prepared only for a decoder that `runs_engines`
    draft_model: Any | None
    tokenizer: Any
    vocab_size: int
    constraint: Constraint | None  # on the text
    processors: Processors | None  # the processors of its logits

    def drafter(self) -> Drafter:
        """Make the drafter."""

    def target(self, layers: tuple[int, ...]) -> LM:
        """Open a session with the target that returns the hidden states of `layers`."""

    def verifier(self) -> Verifier:
        """Make the verifier."""

    def schedule(self) -> Schedule:
        """Make the schedule."""


class Decoder(Protocol):
    """The protocol from a prompt to rounds: this package's loop, or another library as a black box.

    Subclass it explicitly to inherit the defaults.
    """

    runs_engines: ClassVar[bool] = True  # else it is given the models as transformers has them
    rules: ClassVar[Mapping[str, str] | None] = None
    """Drafter -> the verifier that comes with it, of a decoder with rules of its own; else None."""
    prefill_seconds: float | None = None
    """Prefill of the last generation, if rounds come at its end; None: they come while it runs."""
    prompt_tokens: int | None = None  # those of the last generation, where the engine counts them

    @classmethod
    @abstractmethod
    def open(cls, context: DecoderContext, *args: Any, **arguments: Any) -> Self:
        """Make a decoder for a cell; the other parameters are the arguments of its spec."""
        ...

    @classmethod
    def check(cls, cell: CellRequest) -> None:
        """Raise UsageError, before anything starts, for sampling or arguments that it cannot do.

        The default refuses nothing.
        """

    @abstractmethod
    def __call__(
        self,
        prompt: Any,  # token ids; a `EnginePrompt` where another engine has the models
        *,
        limits: Limits,
        warp: Callable[[Tensor], Tensor],
        noise: NoiseStream,
        stop: Stop,
    ) -> Iterator[Round]:
        """Yield the rounds of a text until a limit, an EOS id or a stop string ends it."""
