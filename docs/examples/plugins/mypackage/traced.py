"""A decoder: the loop of the package, with each round printed."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Self

from spsbench.loop.decoder import Decoder, DecoderContext
from spsbench.loop.types import Round
from spsbench.methods.decoders.native import NativeDecoder


class Traced(Decoder):
    """The package's own loop, each round reported on stderr."""

    @classmethod
    def open(cls, context: DecoderContext) -> Self:
        return cls(NativeDecoder.open(context))

    def __init__(self, loop: NativeDecoder) -> None:
        self._loop = loop

    def __call__(self, prompt: Sequence[int], **given: Any) -> Iterator[Round]:
        for done in self._loop(prompt, **given):
            print(f"accepted {done.accepted} of {done.drafted}", file=sys.stderr)
            yield done
