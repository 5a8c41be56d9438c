"""The link between ranks: how long an all-reduce takes, measured or reckoned from two numbers."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.hardware.files import read_file
from spsbench.metrics.costs import Arm, Costs, Surface
from spsbench.metrics.intervals import Floats

KIND, VERSION = "spsbench link", 1
LIMIT = 1 << 20  # bytes of a file
HERE = "here"  # measured between ranks of this machine
EXPECTED = (
    "a time for each all-reduce (0.05ms), latency:bandwidth of a message (0.02ms:50GB/s), the "
    f"file of a measured link, or {HERE} for ranks of this machine"
)
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_TIME = re.compile(_NUMBER + r"(ns|us|ms|s)?", re.ASCII)
_RATE = re.compile(_NUMBER + r"([kMGT]?)(B|b|bit)/s", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1e-3}
_SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Link(Protocol):
    """What joins N ranks; sizes in bytes, times in seconds."""

    def reduce(self, ranks: int, size: float) -> float:
        """An all-reduce of `size` bytes."""

    def gather(self, ranks: int, size: float) -> float:
        """An all-gather that leaves `size` bytes on each."""


@dataclass(frozen=True)
class Constant:
    """Every exchange takes the same: as it is while messages are small."""

    seconds: float

    def reduce(self, ranks: int, size: float) -> float:
        """An all-reduce of `size` bytes."""
        return self.seconds

    def gather(self, ranks: int, size: float) -> float:
        """An all-gather that leaves `size` bytes on each."""
        return self.seconds

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:g} ms an exchange"


@dataclass(frozen=True)
class Wire:
    """Messages of m bytes take `latency` + m / `bandwidth`; the better of two usual algorithms.

    Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
    MPICH", sections 4.1 and 4.4: recursive doubling for short messages, a ring for long ones.
    """

    latency: float  # seconds
    bandwidth: float  # bytes a second

    def reduce(self, ranks: int, size: float) -> float:
        """An all-reduce of `size` bytes."""
        short = math.ceil(math.log2(ranks)) * (self.latency + size / self.bandwidth)
        ring = 2 * (ranks - 1) * (self.latency + size / ranks / self.bandwidth)
        return min(short, ring)

    def gather(self, ranks: int, size: float) -> float:
        """An all-gather that leaves `size` bytes on each."""
        moved = (ranks - 1) / ranks * size / self.bandwidth
        return math.ceil(math.log2(ranks)) * self.latency + moved

    def __str__(self) -> str:
        return f"{1e3 * self.latency:g} ms and {self.bandwidth / 1e9:g} GB/s a message"


@dataclass(frozen=True)
class Measured:
    """All-reduces as they were timed: number of ranks -> [[bytes, seconds], ...], bytes rising.

    Other numbers of ranks than were measured are reckoned from the nearest: as many steps more or
    less as recursive doubling takes. A gather is taken to be no dearer than an all-reduce.
    """

    times: Mapping[int, list[tuple[float, float]]]
    where: str

    def reduce(self, ranks: int, size: float) -> float:
        """An all-reduce of `size` bytes."""
        import numpy as np

        near = min(self.times, key=lambda known: (abs(math.log2(known / ranks)), known))
        steps = math.ceil(math.log2(ranks)) / math.ceil(math.log2(near))
        sizes, seconds = np.array(self.times[near], dtype=np.float64).T
        found = float(np.interp(size, sizes, seconds))
        if size > sizes[-1] and len(sizes) > 1:
            slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            found += max(slope, 0.0) * (size - float(sizes[-1]))
        return float(steps * found)

    def gather(self, ranks: int, size: float) -> float:
        """An all-gather that leaves `size` bytes on each."""
        return self.reduce(ranks, size)

    def __str__(self) -> str:
        return f"all-reduces of {', '.join(map(str, sorted(self.times)))} ranks, {self.where}"


def parse_link(text: str) -> Link:
    """A link as a user writes it; `here` is none yet.

    Raises:
        UsageError: something else than is expected.
        MissingError, DataError: no such file, or one that holds no link.
    """
    first, colon, second = text.replace(" ", "").partition(":")
    time, rate = _TIME.fullmatch(first), _RATE.fullmatch(second)
    if time is None or (colon and rate is None):
        if Path(text).is_file():
            return read_link(Path(text))
        if "/" in text and not colon:
            raise MissingError(f"no file {text} (--link): expected {EXPECTED}")
        raise UsageError(f"--link is {text}: expected {EXPECTED}")
    seconds = float(time[1]) * _SECONDS[time[2]]
    if rate is None:
        return Constant(seconds)
    bandwidth = float(rate[1]) * _SIZES[rate[2]] / (1 if rate[3] == "B" else 8)
    if bandwidth <= 0:
        raise UsageError(f"--link is {text}: expected {EXPECTED}")
    return Wire(seconds, bandwidth)


def read_link(path: Path) -> Measured:
    """The link in a file.

    Raises:
        DataError: it holds none.
    """
    try:
        found = json.loads(read_file(path, LIMIT))
        if (found["kind"], found["version"]) != (KIND, VERSION):
            raise ValueError(f"{found['kind']} {found['version']}, not {KIND} {VERSION}")
        times = {int(ranks): _points(points) for ranks, points in found["ranks"].items()}
        if not times or min(times) < 2:
            raise ValueError("no times between two ranks or more")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} holds no link ({error}): expected all-reduce times. Measure them: torchrun "
            "... -m spsbench.planning.measure_allreduce FILE"
        ) from error
    return Measured(times, str(path))


def link_json(ranks: int, points: list[tuple[float, float]]) -> dict[str, Any]:
    """What the file of a measured link says."""
    return {"kind": KIND, "version": VERSION, "ranks": {str(ranks): points}}


def _points(given: Any) -> list[tuple[float, float]]:
    points = [(float(size), float(seconds)) for size, seconds in given]
    sizes = [size for size, _ in points]
    if not points or sizes != sorted(set(sizes)):
        raise ValueError("sizes that do not rise")
    if not all(math.isfinite(s) and s > 0 for point in points for s in point):
        raise ValueError("times that are none")
    return points


# A table of costs as it would be if ranks shared the models: what is read is divided, links wait.

MESSAGE = 512  # bytes of what rank 0 says
NONE: Mapping[str, "Sizes"] = MappingProxyType({})


class Sizes(NamedTuple):
    """Of a model that could be shared."""

    layers: int
    width: int
    vocabulary: int
    item: int  # bytes of a number

    def waits(self, ranks: int, link: Link, tokens: float) -> float:
        """Seconds that a pass over `tokens` tokens waits for the link."""
        if ranks == 1:
            return 0.0
        state, logits = self.width * self.item * tokens, self.vocabulary * self.item * tokens
        reduces = (2 * self.layers + 1) * link.reduce(ranks, state)
        return reduces + link.gather(ranks, logits) + 2 * link.reduce(ranks, MESSAGE)


def over_ranks(
    costs: Costs, ranks: int, link: Link, target: Sizes, drafts: Mapping[str, Sizes] = NONE
) -> Costs:
    """The costs if `ranks` shared the target, and the draft models of the arms in `drafts`.

    All of a pass is taken to be divided. What is not explained, sampling, rules and the loop stay
    as they were measured: they are rank 0's.
    """
    passes = _shared(
        costs.passes, ranks, [target.waits(ranks, link, n) for n in costs.passes.tokens]
    )
    arms = {}
    for name, arm in costs.arms.items():
        inner = _target(arm, ranks, link, target)
        if name in drafts:
            alone = [k * drafts[name].waits(ranks, link, 1) for k in arm.draft.tokens]
            inner = replace(inner, draft=_shared(arm.draft, ranks, alone))
        arms[name] = inner
    return replace(costs, passes=passes, arms=arms)


def _target(arm: Arm, ranks: int, link: Link, target: Sizes) -> Arm:
    """The pass inside its rounds, which feeds a token more than were drafted."""
    fed = arm.drafted.seconds.mean(0) + 1  # [K, C]
    waits = np.vectorize(lambda n: target.waits(ranks, link, float(n)), otypes=[float])(fed)
    surface = arm.target
    return replace(arm, target=replace(surface, seconds=surface.seconds / ranks + waits))


def _shared(surface: Surface, ranks: int, waits: Sequence[float]) -> Surface:
    added: Floats = np.array(waits, dtype=np.float64)[None, :, None]
    return replace(surface, seconds=surface.seconds / ranks + added)


# The shape of a draft model, as a user writes it.

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
