"""What handing work out costs: the scheduler alone at full size, and the driver's writing.

    python benchmarks/cluster.py --workers 1000 --samples 1000000    simulated time, made-up records
    python benchmarks/cluster.py --write 3000                        a real run folder: ms a record
    python benchmarks/cluster.py --pipes 2000                        real processes, pickled records
    python benchmarks/cluster.py --ray 2000                          the same over Ray

`benchmarks/beside.py` has real generations: two workers beside one process.

Nothing is generated here: pieces take simulated seconds, or none. What is real is the scheduler,
the sizes of pieces, the records, the log on the disk, and what lies between two processes.
"""

import argparse
import heapq
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.distributed.protocol import Done, Event, Hello, Joined, Lost, Piece, Work
from spsbench.distributed.scheduler import Group, Ledger, Scheduler
from spsbench.settings.records import Record, RoundRecord

SECONDS = 20.0  # a sample and its two arms, in the mean
LOST = 1e-4  # chance that a worker is lost during a piece
SLOW = 0.05  # of the workers take three times as long
TOKENS = 128


class Simulated:
    """Workers in simulated time."""

    def __init__(self, count: int, seed: int, mean: float) -> None:
        self.now, self.coming, self.mean = 0.0, count, mean
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, Event]] = []
        self._number = 0
        self._speed: dict[str, float] = {}
        for _ in range(count):
            self._join(self._draw.uniform(20, 60))  # models are loaded

    def clock(self) -> float:
        """Simulated seconds."""
        return self.now

    def give(self, worker: str, piece: Piece) -> None:
        """Its end, or the worker's, is drawn."""
        n = len(piece.units)
        took = self._draw.gammavariate(4 * n, self.mean / 4) * self._speed[worker]
        if self._draw.random() < LOST:
            self._at(self.now + took / 2, Lost(worker, "gone"))
            self._join(self.now + took / 2 + 60)
        else:
            self._at(self.now + took, Done(worker, piece.number, Work(piece.units)))

    def wait(self, seconds: float) -> Sequence[Event]:
        """What comes next."""
        until = self.now + seconds
        if not self._events or self._events[0][0] > until:
            self.now = until
            return []
        self.now, _, event = heapq.heappop(self._events)
        return [event]

    def _join(self, at: float) -> None:
        name = f"w{self._number}"
        self._speed[name] = 3.0 if self._draw.random() < SLOW else 1.0
        self._at(at, Joined(name, Hello(name, {}, {})))

    def _at(self, time: float, event: Event) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, event))

    def ideal(self) -> float:
        """How many of the plain kind those that are there at first are worth."""
        return sum(1 / speed for speed in list(self._speed.values())[: self.coming])


def simulate(workers: int, samples: int, seed: int, mean: float) -> dict[str, Any]:
    pool = Simulated(workers, seed, mean)
    taken, peaks = 0, []
    every = max(samples // 10, 1)

    def take(worker: str, unit: int, result: int) -> None:
        nonlocal taken
        taken += 1
        if taken % every == 0:
            peaks.append(round(peak() / 1024, 1))

    def refuse(unit: int, error: str) -> None:
        raise RuntimeError(f"{unit}: {error}")

    ledger = Ledger(take, refuse)
    scheduler = Scheduler(pool, [Group(samples, iter(range(samples)))], ledger, clock=pool.clock)
    began = time.process_time()
    scheduler.run()
    seconds = time.process_time() - began
    least = samples * mean / pool.ideal()
    return {
        "workers": workers,
        "samples": samples,
        "seconds_a_sample": mean,
        "taken": taken,
        "lost": scheduler.losses,
        "backups": scheduler.backups,
        "simulated_seconds": round(pool.now, 1),
        "least_seconds": round(least, 1),  # all speeds in use to the end, nothing loaded or lost
        "over": round(pool.now / least - 1, 4),
        "samples_a_processor_second": round(taken / seconds),
        "peak_mib_by_tenths": peaks,
    }


def record(number: int) -> Record:
    times = [number + 0.01 * index for index in range(TOKENS // 4)]
    rounds = [RoundRecord(4, 4, 3, 4, t / 3, t, t / 5, t / 2, t + 0.1) for t in times]
    return Record(
        cell="c",
        sample=f"task/{number}",
        prompt_tokens=100,
        tokens=list(range(1000, 1000 + TOKENS)),
        text="word " * TOKENS,
        finish="length",
        prefill_seconds=0.1,
        rounds=rounds,
    )


@dataclass(frozen=True)
class Pretending:
    """A hand that makes records at once."""

    threads: int | None = None
    beside: int = 1

    def hello(self) -> Hello:
        """Ready at once."""
        return Hello("here", {}, {})

    def work(self, units: Sequence[int]) -> Work:
        """Records of the usual size."""
        return Work([record(unit) for unit in units])


def carried(pool: Any, samples: int) -> dict[str, Any]:
    """Driver's processor time and wall time a record, over real processes."""
    taken: list[int] = []
    ledger = Ledger(
        lambda w, unit, found: taken.append(len(found.tokens)), lambda unit, error: None
    )
    scheduler = Scheduler(pool, [Group(samples, iter(range(samples)))], ledger)
    started: list[tuple[float, float]] = []

    def told() -> None:
        if not started:  # workers are there
            started.append((time.perf_counter(), time.process_time()))

    scheduler._ledger = ledger._replace(told=told)
    try:
        scheduler.run()
        wall, own = started[0]
        made = len(taken)
        return {
            "records": made,
            "wall_ms_a_record": round(1e3 * (time.perf_counter() - wall) / made, 3),
            "driver_ms_a_record": round(1e3 * (time.process_time() - own) / made, 3),
        }
    finally:
        pool.close()


def written(count: int) -> dict[str, Any]:
    """Milliseconds a record in a run's log: encoded, written, on the disk."""
    from spsbench.store.manifest import Manifest
    from spsbench.store.run import open_run

    manifest = Manifest(experiment={}, cells={}, fingerprint={}, provenance={})
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        open_run(Path(folder) / "run", manifest) as writer,
    ):
        writer.join("m", {"hardware": {}})
        wall, own, before = time.perf_counter(), time.process_time(), peak()
        for number in range(count):
            writer.append(record(number), "m")
        return {
            "records": count,
            "wall_ms_a_record": round(1e3 * (time.perf_counter() - wall) / count, 3),
            "processor_ms_a_record": round(1e3 * (time.process_time() - own) / count, 3),
            "kib_a_record": round((peak() - before) / count, 3),
        }


def peak() -> int:
    """KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def results(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if asked.samples:
        yield {"simulated": simulate(asked.workers, asked.samples, asked.seed, asked.seconds)}
    if asked.write:
        yield {"written": written(asked.write)}
    if asked.pipes:
        from cluster import Pretending as Importable  # not of __main__: workers have another
        from spsbench.distributed.processes import Processes

        yield {"processes": carried(Processes(partial(Importable), 2), asked.pipes)}
    if asked.ray:
        from spsbench.distributed.on_ray import RayWorkers
        from spsbench.settings.execution import Crew

        crew = Crew(on="ray", cpus_per_worker=1)
        yield {"ray": carried(RayWorkers(crew, Pretending, None, "cpu"), asked.ray)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    for name in ("samples", "write", "pipes", "ray", "seed"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    for each in results(parser.parse_args()):
        print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
