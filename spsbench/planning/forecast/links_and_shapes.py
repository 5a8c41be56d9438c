"""Shapes of draft models: width and number of layers."""

import re
from typing import NamedTuple

from spsbench.errors import UsageError

MAX_SHAPES = 16  # shapes in one table
STEP = 8  # widths are multiples of it
WIDEST, DEEPEST = 1 << 15, 256

_SHAPE = re.compile(r"([1-9][0-9]{0,7})x([1-9][0-9]{0,7})", re.ASCII)


class Shape(NamedTuple):
    """Width and number of layers of a draft model, as in user input."""

    width: int
    depth: int

    def __str__(self) -> str:
        return f"{self.width}x{self.depth}"


class ShapeCost(NamedTuple):
    """The measured costs of a draft model."""

    shape: Shape
    model: str  # empty: random weights
    arm: str  # name in the costs
    numbers: int | None  # number of parameters
    read: int | None  # bytes of weights read for a token


def parse_shapes(text: str) -> list[Shape]:
    """Parse a list of widths and depths: `256x8,512x2`.

    Raises:
        UsageError: no such list, or invalid sizes.
    """
    parsed = []
    for part in text.replace(" ", "").split(","):
        matched = _SHAPE.fullmatch(part)
        if matched is None:
            raise UsageError(
                f"`shapes` {part!r}: expected WIDTHxDEPTH,... such as 256x8,512x2. Write it so"
            )
        shape = Shape(int(matched[1]), int(matched[2]))
        if shape.width % STEP or shape.width > WIDEST or shape.depth > DEEPEST:
            raise UsageError(
                f"`shapes` {part}: expected a width that is a multiple of {STEP} up to {WIDEST}, "
                f"and at most {DEEPEST} layers. Change it"
            )
        parsed.append(shape)
    shapes = list(dict.fromkeys(parsed))
    if len(shapes) > MAX_SHAPES:
        raise UsageError(
            f"`shapes` has {len(shapes)} of them: expected at most {MAX_SHAPES}. Ask for them in "
            "parts"
        )
    return shapes
