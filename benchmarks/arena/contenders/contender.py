"""What a worker asks of an engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

WARM = 2  # untimed calls before a timed one


@dataclass(frozen=True)
class Setting:
    """One measurement, the same for every engine."""

    target: str  # a folder in transformers' format
    draft: str
    dtype: str  # float32 or bfloat16
    k: int
    temperature: float
    threads: int | None  # None: the engine's fastest
    cores: int
    context: int  # tokens that prompt and output need at most
    compiled: bool = False  # measure transformers' compiled variant as well
    work: str = ""  # where converted models are kept
    weights: str = ""  # int8 or int4, of both models; empty: in `dtype`

    def converted(self, engine: str) -> Path:
        """The folder for this pair in the form that `engine` wants."""
        return Path(self.work) / engine / (self.weights or self.dtype)


@dataclass
class Turn:
    """One generation: its tokens, and when each block of them came."""

    tokens: list[int]
    blocks: list[tuple[int, float]]  # tokens of a round, seconds it took; the first has a prefill
    parts: dict[str, float] = field(default_factory=dict)  # seconds by part, where they are known
    whole: bool = False  # every block counts: none holds more than its share of the prefill

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class Contender(Protocol):
    """An engine under measurement. Its constructor imports its libraries and nothing more.

    Subclass it explicitly to inherit the default.
    """

    def load(self, setting: Setting) -> None:
        """Load both models, ready to generate."""

    def settle(self) -> None:
        """Choose by measurement what loading leaves open, such as threads; in no load time."""

    def arms(self) -> Sequence[str]:
        """What it can do: `ars`, `ars-static`, `sps`, `sps-defaults`, `lookup`, ..."""

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        """Continue `prompt` by `tokens` tokens; no EOS ends it."""

    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        """Seconds of `one`, `block` (K+1 tokens) and `draft` passes at the prompt's length."""

    def notes(self) -> dict[str, Any]:
        """What belongs in the record: versions, threads, choices made."""


def convert(setting: Setting) -> None:
    """Nothing to convert: the engine reads transformers' folders."""


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def alternate(repeats: int, **calls: Callable[[], Any]) -> dict[str, list[float]]:
    """Seconds of each call, in turn, so that a drifting machine falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM + repeats):
        for name, call in calls.items():
            seconds = timed(call)
            if number >= WARM:
                times[name].append(seconds)
    return times


def fastest_threads(counts: Sequence[int], set_threads: Callable[[int], None],
                    probe: Callable[[], Any],
                    clock: Callable[[Callable[[], Any]], float] | None = None) -> int:  # fmt: skip
    """The thread count with the quickest probe (the best of three), left set."""
    best: dict[int, float] = {}
    clock = clock or timed
    for count in counts:
        set_threads(count)
        probe()
        best[count] = min(clock(probe) for _ in range(3))
    chosen = min(best, key=lambda count: best[count])
    set_threads(chosen)
    return chosen
