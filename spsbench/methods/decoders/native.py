"""The decoder that runs this package's own loop over its engines."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Self

from spsbench.errors import UsageError
from spsbench.loop.decode import decode
from spsbench.loop.decoder import Decoder, DecoderContext
from spsbench.loop.types import Round
from spsbench.settings.cell import CellRequest

MAX_LIKELIEST = 20  # tokens after each that may be recorded


class NativeDecoder(Decoder):
    """`decode` with the parts of a cell.

    `loop` is `decode`, to be called with the prompt and the keywords of `Decoder.__call__`.
    """

    ranges: ClassVar = {"likeliest": (0, MAX_LIKELIEST)}

    @classmethod
    def open(cls, context: DecoderContext, laws: bool = False, likeliest: int = 0) -> Self:
        """Return a decoder that runs `decode` with the parts of a cell.

        `laws` records the draft's probabilities as well, for audits, and `likeliest`, with them, so
        many of the target's likeliest tokens after each.
        """
        drafter = context.drafter()
        return cls(
            partial(
                decode,
                target=context.target(drafter.layers),
                drafter=drafter,
                verifier=context.verifier(),
                schedule=context.schedule(),
                constraint=context.constraint,
                processors=context.processors,
                probs=laws,
                likeliest=likeliest,
            )
        )

    @classmethod
    def check(cls, cell: CellRequest) -> None:
        args = dict(cell.decoder.args)
        if args.get("likeliest") and not args.get("laws"):
            raise UsageError(f"{cell.decoder}: expected likeliest with laws=true. Add it")

    def __init__(self, loop: Callable[..., Iterator[Round]]) -> None:
        self._loop = loop

    def __call__(self, prompt: Any, **options: Any) -> Iterator[Round]:
        return self._loop(prompt, **options)
