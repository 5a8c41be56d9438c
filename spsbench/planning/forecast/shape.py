"""The shape of a draft model, as a user writes it."""

import re
from typing import NamedTuple

from spsbench.errors import UsageError

MOST = 16  # shapes in one table
STEP = 8  # widths are multiples of it
WIDEST, DEEPEST = 1 << 15, 256

_SHAPE = re.compile(r"([1-9][0-9]{0,7})x([1-9][0-9]{0,7})", re.ASCII)


class Shape(NamedTuple):
    """Width and number of layers."""

    width: int
    depth: int

    def __str__(self) -> str:
        return f"{self.width}x{self.depth}"


class ShapeCost(NamedTuple):
    """A draft model in a table of costs."""

    shape: Shape
    model: str  # empty: of random weights
    arm: str  # its name in the costs
    numbers: int | None  # in the model
    read: int | None  # bytes of weights for a token


def parse_shapes(text: str) -> list[Shape]:
    """`256x8,512x2`: widths and depths.

    Raises:
        UsageError: what is no such list, or sizes that no draft has.
    """
    found = []
    for part in text.replace(" ", "").split(","):
        matched = _SHAPE.fullmatch(part)
        if matched is None:
            raise UsageError(
                f"--shapes {part!r}: expected WIDTHxDEPTH,... such as 256x8,512x2. Write it so"
            )
        shape = Shape(int(matched[1]), int(matched[2]))
        if shape.width % STEP or shape.width > WIDEST or shape.depth > DEEPEST:
            raise UsageError(
                f"--shapes {part}: expected a width that is a multiple of {STEP} up to {WIDEST}, "
                f"and at most {DEEPEST} layers. Change it"
            )
        found.append(shape)
    shapes = list(dict.fromkeys(found))
    if len(shapes) > MOST:
        raise UsageError(
            f"--shapes has {len(shapes)} of them: expected at most {MOST}. Ask for them in parts"
        )
    return shapes
