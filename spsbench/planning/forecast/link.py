"""The link between ranks: how long an all-reduce takes, measured or reckoned from two numbers."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.hardware.files import read_file

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
            "... -m spsbench.planning.reduces FILE"
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
