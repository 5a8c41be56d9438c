"""This package's own loop over its engines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from spsbench.decode import decode
from spsbench.types import LM, Drafter, Limits, NoiseStream, Round, Schedule, Stop, Verifier


@dataclass(frozen=True, slots=True)
class NativeDecoder:
    """`decode` with its parts bound.

    Args:
        laws: record the draft's probabilities as well, for audits.
    """

    target: LM
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    laws: bool = False

    def __call__(
        self,
        prompt: Sequence[int],
        *,
        limits: Limits,
        warp: Callable[[Tensor], Tensor],
        noise: NoiseStream,
        stop: Stop,
    ) -> Iterator[Round]:
        """Continue `prompt`; see `decode.decode`."""
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
            laws=self.laws,
        )
