"""Starts of a run: the provenance of records; times are pooled over starts on one machine."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, field

from spsbench.store.manifest import Count, Moment, Positive, now

Amount = Annotated[float, Meta(ge=0, le=1e300)]


class Git(Struct):
    """The checkout of the sources."""

    commit: str
    diff: str | None = None  # SHA-256 of later changes
    untracked: int = 0  # files of the package, not of the checkout


class Memory(Struct):
    """The memory bandwidth of a machine, and what bounds the times of ArS: weights, products."""

    bandwidth: Annotated[float, Meta(ge=1, le=1e300)]  # bytes a second
    loaded: bool = False  # whether other work ran while it was measured
    weights: dict[str, Count] = {}  # target -> bytes read for a token
    prompt: dict[str, Amount] = {}  # target -> seconds that products take for a prompt's token


class Provenance(Struct, omit_defaults=True):
    """The origin of numbers: code, versions and machine; no paths, user or host names."""

    git: Git | None = None
    versions: dict[str, str | None] = {}
    hardware: dict[str, Any] = {}
    environment: dict[str, str] = {}  # chosen variables
    set_here: list[str] = []  # variables that this process has changed
    threads: Positive | None = None
    memory: Memory | None = None

    @property
    def timing_conditions(self) -> dict[str, Any]:
        """Return the conditions of times: threads are one, the available cores are not."""
        features = {n: value for n, value in self.hardware.items() if n != "usable_cores"}
        return features if self.threads is None else features | {"threads": self.threads}

    @property
    def machine(self) -> str:
        """Return eight hex digits for the kind of machine, the same for the same conditions."""
        text = json.dumps(self.timing_conditions, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


Engines = dict[str, dict[str, Any]]  # model, dtype, engine -> choices by timing, kept on resume


class Note(Struct, omit_defaults=True):
    """Facts that a start has learnt after its first record."""

    memory: Memory | None = None
    engines: Engines = {}
    counters: dict[str, dict[str, Amount]] = {}  # cell -> counts over texts, of none alone


class Start(Struct, omit_defaults=True, eq=False):
    """One start of a shard, or of a worker's machine in it: a line before its first record."""

    started: Moment = field(default_factory=now)
    provenance: Provenance = field(default_factory=Provenance)
    machine: str | None = None  # named by the records that a worker made
    clock: Moment | None = None  # given to chat templates, where it is not the manifest's
    engines: Engines = {}
    counters: dict[str, dict[str, Amount]] = {}

    def add(self, note: Note) -> None:
        """Add what a note says: the newest memory and choices, and further counts."""
        self.provenance.memory = note.memory or self.provenance.memory
        self.engines |= note.engines
        for cell, counts in note.counters.items():
            sums = self.counters.setdefault(cell, {})
            sums |= {name: sums.get(name, 0) + count for name, count in counts.items()}


class Machine(NamedTuple):
    """Starts on one kind of machine, whose times may be averaged."""

    starts: list[Start]
    features: Mapping[str, Any]  # conditions of a time: processor, memory, threads ...

    @property
    def provenance(self) -> Provenance:
        """Return the provenance of the first start."""
        return self.starts[0].provenance


def machines(starts: Iterable[Start]) -> list[Machine]:
    """Group starts, each object once, by equal `timing_conditions`, in order of the first ones."""
    kinds: list[Machine] = []
    for start in {id(start): start for start in starts}.values():
        features = start.provenance.timing_conditions
        kind = next((kind for kind in kinds if kind.features == features), None)
        if kind is None:
            kinds.append(Machine([start], features))
        else:
            kind.starts.append(start)
    return kinds


def unlike(machines: Sequence[Machine]) -> Iterator[str]:
    """Yield `machine 1: cpu A, ...` for each: the conditions that not all share. Not for []."""
    names = dict.fromkeys(name for machine in machines for name in machine.features)
    first = machines[0].features
    differing = [n for n in names if any(m.features.get(n) != first.get(n) for m in machines)]
    for number, machine in enumerate(machines, start=1):
        words = ", ".join(f"{name} {machine.features.get(name)}" for name in differing)
        yield f"machine {number}: {words}"


def memory_before(starts: Sequence[Start], provenance: Provenance) -> Memory | None:
    """Return the memory of the last start on a machine as of `provenance` without load, or None."""
    for start in reversed(starts):
        memory = start.provenance.memory
        alike = start.provenance.timing_conditions == provenance.timing_conditions
        if memory is not None and not memory.loaded and alike:
            return memory
    return None
