"""Which starts of a run are alike: times are pooled on one machine, records under one setting."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.store.manifest import NAME, Manifest


class Machine(NamedTuple):
    """Starts whose times may be averaged with each other."""

    segments: frozenset[int]  # indices into Manifest.segments
    features: Mapping[str, Any]  # what a time depends on: processor, memory, threads ...
    provenance: Mapping[str, Any]  # of the first of them


class Setting(NamedTuple):
    """Starts of one configuration: the run's own, or another that was forced into it."""

    machines: tuple[Machine, ...]
    differences: tuple[str, ...]  # from the configuration that the run was started with

    @property
    def segments(self) -> frozenset[int]:
        """Those of all its machines."""
        return frozenset().union(*(machine.segments for machine in self.machines))


def settings(manifest: Manifest, used: Iterable[int] | None = None) -> list[Setting]:
    """The settings of a run and their machines, in the order in which they came.

    Args:
        manifest: of the run.
        used: the segments that have records; None = all of them.
    """
    found: list[tuple[tuple[str, ...], list[tuple[Mapping[str, Any], list[int]]]]] = []
    wanted = range(len(manifest.segments)) if used is None else sorted(used)
    for index in wanted:
        segment = manifest.segments[index]
        differences = tuple(segment.get("differences") or ())
        features = features_of(segment, manifest.experiment.get("threads"))
        machines = _entry(found, differences)
        _entry(machines, features).append(index)
    return [
        Setting(
            tuple(
                Machine(
                    frozenset(indices),
                    features,
                    manifest.segments[indices[0]].get("provenance", {}),
                )
                for features, indices in machines
            ),
            differences,
        )
        for differences, machines in found
    ]


def _entry(found: list[tuple[Any, list[Any]]], key: Any) -> list[Any]:
    """The list beside `key`, put there empty if it is new; keys need not be hashable."""
    for known, entries in found:
        if known == key:
            return entries
    found.append((key, []))
    return found[-1][1]


def features_of(segment: Mapping[str, Any], asked: int | None) -> dict[str, Any]:
    """What the times of a start depend on.

    The cores that it might have used are no part of it: how many threads it ran with is. Earlier
    versions noted only those cores, and called them threads.

    Args:
        segment: of a manifest.
        asked: threads that the user asked for.
    """
    provenance = segment.get("provenance") or {}
    features = dict(provenance.get("hardware") or {})
    usable = features.pop("threads", None)
    features.pop("usable_cores", None)
    before = usable if asked is None or usable is None else min(asked, usable)
    threads = provenance.get("threads", before)
    return features if threads is None else features | {"threads": threads}


def machine_name(provenance: Mapping[str, Any]) -> str:
    """A short name of a kind of machine, by what times depend on: alike machines have one."""
    text = json.dumps(features_of({"provenance": provenance}, None), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def unlike(machines: Sequence[Machine]) -> Iterator[str]:
    """What is not alike, a line a machine: `machine 1: cpu A, threads 2`."""
    names = dict.fromkeys(name for machine in machines for name in machine.features)
    first = machines[0].features
    differing = [n for n in names if any(m.features.get(n) != first.get(n) for m in machines)]
    for number, machine in enumerate(machines, start=1):
        words = ", ".join(f"{name} {machine.features.get(name)}" for name in differing)
        yield f"machine {number}: {words}"


def bandwidth_before(
    folder: Path, provenance: Mapping[str, Any], asked: int | None
) -> float | None:
    """Bytes a second that an earlier start of a run has measured, undisturbed, on such a machine.

    Raises:
        DataError: a manifest that cannot be read.
    """
    if not (folder / NAME).exists():
        return None
    now = features_of({"provenance": provenance}, asked)
    for segment in reversed(Manifest.load(folder).segments):
        memory = (segment.get("provenance") or {}).get("memory")
        if not memory or memory.get("loaded"):
            continue
        if features_of(segment, asked) == now:
            return float(memory["bandwidth"])
    return None
