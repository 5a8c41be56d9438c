"""Kills at random times: what is left must be what a run without kills leaves, but for times.

    python benchmarks/kills.py --whom worker --kills 100                 processes, forked from one
    python benchmarks/kills.py --whom driver --kills 100                   that has imported torch
    python benchmarks/kills.py --whom worker --kills 10 --on ray           real commands, over Ray
    python benchmarks/kills.py --whom driver --kills 10 --plain            real commands, processes

A run is begun, a worker or the driver is killed (SIGKILL) at a time drawn anew, and a run that
ended early is gone on with, until it is whole; then it is compared with a local one, and another is
begun. After each kill of a driver its workers must be gone within 20 s. `--seconds` ends it early.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from killing.commands import Drivers, Forked, Started  # noqa: E402
from killing.seen import Life, is_agent, lives, processes, workers  # noqa: E402
from killing.work import OF, Work, work  # noqa: E402

PATIENCE = 20.0  # seconds in which workers end without their driver
RAY = 120.0  # more for Ray's own agents, which miss their cluster after about a minute
HANGS = 240.0  # seconds after which a run hangs


@dataclass
class Tally:
    """What was seen."""

    kills: int = 0
    starts: int = 0
    runs: int = 0
    equal: int = 0
    codes: dict[int, int] = field(default_factory=dict)  # exit code -> starts
    found: list[str] = field(default_factory=list)  # what should not be


class Killing:
    """One kind of work, again and again."""

    def __init__(self, asked: argparse.Namespace, drivers: Drivers) -> None:
        self.asked, self.drivers = asked, drivers
        self.tally, self.draw = Tally(), random.Random(asked.seed)
        self.place = Path(tempfile.mkdtemp(prefix="kills-", dir=asked.place))
        self.work: Work = work(asked.of, self.place)
        self.before = frozenset(processes())
        self.until = time.monotonic() + asked.seconds

    def run(self) -> Tally:
        """Until there are enough kills, or no time is left."""
        here = self.place / "here"
        self._ended(self.drivers.start(self.work, here, "here"))
        self.alike = self.work.bare(here)
        there, began = self.place / "whole", time.monotonic()
        self._ended(self.drivers.start(self.work, there, self.asked.on))
        self.usual = time.monotonic() - began
        self._compare(there)
        print(f"a run takes {self.usual:.1f} s", file=sys.stderr, flush=True)
        while not self._enough():
            folder = self.place / f"run-{self.tally.runs}"
            self._one(folder)
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.place)
        return self.tally

    def _enough(self) -> bool:
        return self.tally.kills >= self.asked.kills or time.monotonic() > self.until

    def _one(self, folder: Path) -> None:
        """A run to its end, with kills."""
        self.tally.runs += 1
        for _ in range(1000):
            started = self.drivers.start(self.work, folder, self.asked.on)
            self.tally.starts += 1
            kill = self._worker_killed if self.asked.whom == "worker" else self._driver_killed
            code = kill(started)
            self.tally.codes[code] = self.tally.codes.get(code, 0) + 1
            if code == 0:
                self._compare(folder)
                return
            if code not in (-signal.SIGKILL, 69):
                self.tally.found.append(f"exit code {code}")
                return

    def _worker_killed(self, started: Started) -> int:
        """Kill workers now and then, until the run ends."""
        gap = self.asked.gap or self.usual / 5
        began = time.monotonic()
        while time.monotonic() - began < HANGS:
            code = started.wait(self.draw.expovariate(1 / gap))
            if code is not None:
                return code
            there = workers(started.mark, self.before)
            if there and not self._enough():
                self.draw.choice(there).kill()
                self.tally.kills += 1
        return self._hanging(started)

    def _driver_killed(self, started: Started) -> int:
        """Kill the driver, once; its workers must end."""
        limit = self.draw.uniform(0, 1.5 * self.usual) if not self._enough() else HANGS
        code = started.wait(limit)
        if code is not None:
            return code
        if limit == HANGS:
            return self._hanging(started)
        there = lives(started.mark, self.before)
        started.kill()
        self.tally.kills += 1
        code = started.wait(PATIENCE)
        self._gone(there)
        return -signal.SIGKILL if code is None else code

    def _gone(self, there: list[Life]) -> None:
        began = time.monotonic()
        left = [life for life in there if life.is_there]
        while left and time.monotonic() - began < PATIENCE + RAY * all(map(is_agent, left)):
            time.sleep(0.02)
            left = [life for life in left if life.is_there]
        for life in left:
            self.tally.found.append(f"left behind: {life.name[:80]}")
            life.kill()

    def _hanging(self, started: Started) -> int:
        self.tally.found.append("it hangs")
        started.kill()
        started.wait(PATIENCE)
        return 1

    def _ended(self, started: Started) -> None:
        code = started.wait(HANGS)
        if code != 0:
            raise SystemExit(f"without a kill it ended with {code}: {started.told}")

    def _compare(self, folder: Path) -> None:
        if self.work.bare(folder) == self.alike:
            self.tally.equal += folder.name != "whole"
        else:
            self.tally.found.append(f"{folder.name} is another")
            shutil.copytree(folder, self.place.with_name(f"{self.place.name}-{folder.name}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whom", choices=("worker", "driver"), default="worker")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--of", choices=OF, default="bench")
    parser.add_argument("--on", default="processes:2")
    parser.add_argument("--plain", action="store_true", help="commands as users give them")
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--gap", type=float, default=0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--place", type=Path, default=None, help="where runs are made")
    asked = parser.parse_args()
    plain = asked.plain or asked.on.startswith("ray")
    drivers: Any = Started if plain else Forked
    found: dict[str, Any] = {}
    made = Killing(asked, Drivers(drivers))
    closing: Callable[[], None] = made.drivers.close
    with suppress(KeyboardInterrupt):
        try:
            made.run()
        finally:
            closing()
    found = {"of": asked.of, "on": asked.on, "whom": asked.whom, "forked": not plain}
    print(json.dumps(found | asdict(made.tally)), flush=True)
    raise SystemExit(bool(made.tally.found))


if __name__ == "__main__":
    main()
