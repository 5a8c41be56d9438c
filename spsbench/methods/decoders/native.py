"""The decoder that runs this package's own loop over its engines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from spsbench.errors import UsageError
from spsbench.loop.constraint import Constraint
from spsbench.loop.decode import decode
from spsbench.loop.decoder import Decoder, DecoderContext
from spsbench.loop.types import LM, Drafter, Limits, NoiseStream, Round, Schedule, Stop, Verifier
from spsbench.settings.cell import CellRequest
from spsbench.settings.processors import Processors

MAX_LIKELIEST = 20  # tokens after each that may be recorded


@dataclass(frozen=True)
class NativeDecoder(Decoder):
    """`decode` with its parts bound.

    Args:
        laws: record the draft's probabilities as well, for audits.
        likeliest: with them, so many of the target's likeliest tokens after each.
    """

    ranges: ClassVar = {"likeliest": (0, MAX_LIKELIEST)}

    target: LM
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    laws: bool = False
    likeliest: int = 0
    constraint: Constraint | None = None
    processors: Processors | None = None

    @classmethod
    def open(cls, context: DecoderContext, laws: bool = False, likeliest: int = 0) -> Self:
        drafter = context.drafter()
        models = context.target(drafter.layers), drafter
        rules = context.verifier(), context.schedule()
        return cls(*models, *rules, laws, likeliest, context.constraint, context.processors)

    @classmethod
    def check(cls, cell: CellRequest) -> None:
        args = dict(cell.decoder.args)
        if args.get("likeliest") and not args.get("laws"):
            raise UsageError(f"{cell.decoder}: expected likeliest with laws=true. Add it")

    def __call__(
        self,
        prompt: Sequence[int],
        *,
        limits: Limits,
        warp: Callable[[Tensor], Tensor],
        noise: NoiseStream,
        stop: Stop,
    ) -> Iterator[Round]:
        return decode(
            prompt,
            target=self.target,
            drafter=self.drafter,
            verifier=self.verifier,
            schedule=self.schedule,
            warp=warp,
            noise=noise,
            limits=limits,
            stop=stop,
            constraint=self.constraint,
            processors=self.processors,
            probs=self.laws,
            likeliest=self.likeliest,
        )
