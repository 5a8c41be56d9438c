"""Costs under other conditions: models shared by ranks over a link, and drafts of other shapes.

An all-reduce is measured, or computed from latency and bandwidth. Over ranks, the compute of a pass
is divided and the time of the link is added.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.hardware.files import read_file
from spsbench.metrics.costs import Costs
from spsbench.metrics.surfaces import Surface

KIND, VERSION = "spsbench link", 1
LIMIT = 1 << 20  # bytes of a file
HERE = "here"  # a link measured between ranks of this machine
EXPECTED = (
    "a time for each all-reduce (0.05ms), latency:bandwidth of a message (0.02ms:50GB/s), the "
    f"file of a measured link, or {HERE} for ranks of this machine"
)
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_TIME = re.compile(_NUMBER + r"(ns|us|ms|s)?", re.ASCII)
_RATE = re.compile(_NUMBER + r"([kMGT]?)(B|b|bit)/s", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1e-3}
_SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Link(ABC):
    """A link between N ranks; sizes in bytes, times in seconds."""

    @abstractmethod
    def reduce(self, ranks: int, size: float) -> float:
        """Return the time of an all-reduce of `size` bytes."""

    def gather(self, ranks: int, size: float) -> float:
        """Return the time of an all-gather that leaves `size` bytes on each rank.

        Where the link knows no better: that of an all-reduce.
        """
        return self.reduce(ranks, size)


@dataclass(frozen=True)
class ConstantLink(Link):
    """A constant time for every exchange, as holds for small messages."""

    seconds: float

    def reduce(self, ranks: int, size: float) -> float:
        """Return the time of an all-reduce of `size` bytes."""
        return self.seconds

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:g} ms an exchange"


@dataclass(frozen=True)
class LinearLink(Link):
    """A linear model: `latency` + m / `bandwidth` for m bytes, by the better of two algorithms.

    Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
    MPICH", sections 4.1 and 4.4: recursive doubling for short messages, a ring for long messages.
    """

    latency: float  # seconds
    bandwidth: float  # bytes a second

    def reduce(self, ranks: int, size: float) -> float:
        """Return the time of an all-reduce of `size` bytes."""
        short = math.ceil(math.log2(ranks)) * (self.latency + size / self.bandwidth)
        ring = 2 * (ranks - 1) * (self.latency + size / ranks / self.bandwidth)
        return min(short, ring)

    def gather(self, ranks: int, size: float) -> float:
        """Return the time of an all-gather that leaves `size` bytes on each rank."""
        moved = (ranks - 1) / ranks * size / self.bandwidth
        return math.ceil(math.log2(ranks)) * self.latency + moved

    def __str__(self) -> str:
        return f"{1e3 * self.latency:g} ms and {self.bandwidth / 1e9:g} GB/s a message"


@dataclass(frozen=True)
class MeasuredLink(Link):
    """Measured all-reduces: number of ranks -> [[bytes, seconds], ...], bytes rising.

    Times for other numbers of ranks scale from the nearest by the steps of recursive doubling. A
    gather is taken to cost at most an all-reduce.
    """

    times: Mapping[int, list[tuple[float, float]]]
    where: str

    def reduce(self, ranks: int, size: float) -> float:
        """Return the time of an all-reduce of `size` bytes."""
        near = min(self.times, key=lambda count: (abs(math.log2(count / ranks)), count))
        steps = math.ceil(math.log2(ranks)) / math.ceil(math.log2(near))
        sizes, seconds = np.array(self.times[near], dtype=np.float64).T
        interpolated = float(np.interp(size, sizes, seconds))
        if size > sizes[-1] and len(sizes) > 1:
            slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            interpolated += max(slope, 0.0) * (size - float(sizes[-1]))
        return float(steps * interpolated)

    def __str__(self) -> str:
        return f"all-reduces of {', '.join(map(str, sorted(self.times)))} ranks, {self.where}"


def parse_link(text: str) -> Link:
    """Parse a link from user input; `here` gives no link until it is measured.

    Raises:
        UsageError: invalid input.
        MissingError, DataError: no such file, or a file without a link.
    """
    first, colon, second = text.replace(" ", "").partition(":")
    time, rate = _TIME.fullmatch(first), _RATE.fullmatch(second)
    if time is None or (colon and rate is None):
        if Path(text).is_file():
            return read_link(Path(text))
        if "/" in text and not colon:
            raise MissingError(f"no file {text} (`link`): expected {EXPECTED}")
        raise UsageError(f"`link` is {text}: expected {EXPECTED}")
    seconds = float(time[1]) * _SECONDS[time[2]]
    if rate is None:
        return ConstantLink(seconds)
    bandwidth = float(rate[1]) * _SIZES[rate[2]] / (1 if rate[3] == "B" else 8)
    if bandwidth <= 0:
        raise UsageError(f"`link` is {text}: expected {EXPECTED}")
    return LinearLink(seconds, bandwidth)


def read_link(path: Path) -> MeasuredLink:
    """Read a link from a file.

    Raises:
        DataError: the file holds no link.
    """
    try:
        values = json.loads(read_file(path, LIMIT))
        if (values["kind"], values["version"]) != (KIND, VERSION):
            raise ValueError(f"{values['kind']} {values['version']}, not {KIND} {VERSION}")
        times = {int(ranks): _points(points) for ranks, points in values["ranks"].items()}
        if not times or min(times) < 2:
            raise ValueError("no times between two ranks or more")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} holds no link ({error}): expected all-reduce times. Measure them: torchrun "
            "... -m spsbench.planning.measure_allreduce FILE"
        ) from error
    return MeasuredLink(times, str(path))


def link_json(ranks: int, points: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the JSON values of a measured link."""
    return {"kind": KIND, "version": VERSION, "ranks": {str(ranks): points}}


def _points(pairs: Any) -> list[tuple[float, float]]:
    points = [(float(size), float(seconds)) for size, seconds in pairs]
    sizes = [size for size, _ in points]
    if not points or sizes != sorted(set(sizes)):
        raise ValueError("sizes that do not rise")
    if not all(math.isfinite(s) and s > 0 for point in points for s in point):
        raise ValueError("times that are none")
    return points


MESSAGE = 512  # bytes of a broadcast from rank 0
NONE: Mapping[str, "Sizes"] = MappingProxyType({})


class Sizes(NamedTuple):
    """The sizes of a model that ranks could share."""

    layers: int
    width: int
    vocabulary: int
    item: int  # bytes of a number

    def waits(self, ranks: int, link: Link, tokens: float) -> float:
        """Return the seconds that a pass over `tokens` tokens waits for the link."""
        if ranks == 1:
            return 0.0
        state, logits = self.width * self.item * tokens, self.vocabulary * self.item * tokens
        reduces = (2 * self.layers + 1) * link.reduce(ranks, state)
        return reduces + link.gather(ranks, logits) + 2 * link.reduce(ranks, MESSAGE)


def over_ranks(
    costs: Costs, ranks: int, link: Link, target: Sizes, drafts: Mapping[str, Sizes] = NONE
) -> Costs:
    """Return the costs if `ranks` shared the target and the draft models of the arms in `drafts`.

    A pass is taken to be divided completely. Unexplained time, sampling, rules and the decoding
    loop stay as measured: rank 0 runs them.
    """

    def change(part: str, name: str, surface: Surface) -> Surface:
        if part == "target":
            waits = np.array([target.waits(ranks, link, n) for n in surface.tokens])[:, None]
        elif part == "inside":  # feeds one token more than were drafted
            fed = costs.arms[name].drafted.seconds.mean(0) + 1  # [K, C]
            waits = np.vectorize(lambda n: target.waits(ranks, link, n), otypes=[float])(fed)
        elif part == "draft" and name in drafts:
            wait = drafts[name].waits(ranks, link, 1)
            waits = wait * np.array(surface.tokens)[:, None]
        else:
            return surface
        return replace(surface, seconds=surface.seconds / ranks + waits)

    return costs.transformed(change)


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
