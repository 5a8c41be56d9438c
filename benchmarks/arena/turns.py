"""The measurement: engines take turns, repeat by repeat, on the same prompts and token budget."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from arena.contenders.contender import Setting
from arena.process import Engine, EngineError, Process

READER = Engine("bandwidth", "arena.bandwidth:Bandwidth")
STEPS = 5  # single passes of each kind a repeat
NEEDED = 2.5  # times its weights, an engine may need while it loads


@dataclass
class Run:
    """All that was measured, as it came."""

    bandwidth: list[dict[str, float]] = field(default_factory=list)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)  # facts and lists by engine
    failures: dict[str, str] = field(default_factory=dict)


class Arena:
    """Workers that are started when it is their turn and stay while memory lasts."""

    def __init__(self, engines: Sequence[Engine], setting: Setting, logs: Path, bytes_: int,
                 reader: Engine = READER):  # fmt: skip
        self._setting, self._bytes, self._logs = setting, bytes_, logs
        self._processes = {e.name: self._process(e) for e in engines}
        self._reader = self._process(reader)
        self.run = Run()

    def _process(self, engine: Engine) -> Process:
        return Process(engine, self._logs / f"{engine.name}.log", self._setting.threads)

    def measure(self, prompts: Sequence[list[int]], tokens: int) -> Run:
        """A repeat for each prompt but the first, which only warms up.

        Every second repeat goes through the engines backwards.
        """
        try:
            for name in self._processes:
                self._attempt(name, "load", lambda n=name: self._up(n, prompts[0]))
            for number, prompt in enumerate(prompts[1:]):
                for name, arm in self._order(number):
                    print(f"repeat {number + 1}: {name} {arm}", file=sys.stderr)
                    self._attempt(
                        name, arm, lambda n=name, a=arm, p=prompt: self._turn(n, a, p, tokens)
                    )
        finally:
            for process in (self._reader, *self._processes.values()):
                process.stop()
        return self.run

    def _order(self, number: int) -> Iterator[tuple[str, str]]:
        """Arm by arm while all fit memory together, so that rivals run close in time.

        Else engine by engine, which loads each but once a repeat.
        """
        turns = [
            (name, arm)
            for name, facts in self.run.engines.items()
            for arm in [*facts["arms"], "steps"]
            if name not in self.run.failures
        ]
        if all(self._processes[name].runs for name, _ in turns):
            arms = list(dict.fromkeys(arm for _, arm in turns))
            turns.sort(key=lambda turn: arms.index(turn[1]))
        yield from reversed(turns) if number % 2 else turns

    def _attempt(self, name: str, what: str, act: Callable[[], object]) -> None:
        """An engine that fails is out; the others go on."""
        if name in self.run.failures:
            return
        try:
            act()
        except EngineError as error:
            self.run.failures[name] = str(error)
            self._processes[name].stop()
            print(f"{name} is out at {what}: {error}", file=sys.stderr)

    def _up(self, name: str, prompt: list[int]) -> Process:
        process = self._processes[name]
        if process.runs:
            return process
        self._make_room(name)
        setting = asdict(self._setting) | {"weights": process.engine.weights}
        if process.engine.converts and name not in self.run.engines:
            converter = self._process(process.engine)  # apart: converters import a great deal
            try:
                converter.ask("convert", setting=setting)
            finally:
                converter.stop()
        loaded = process.ask("load", setting=setting)
        warm = process.ask("warm", prompt=prompt)
        facts = self.run.engines.setdefault(
            name, {"arms": loaded["arms"], "loads": [], "turns": {}, "steps": [], **warm}
        )
        facts["loads"].append({key: loaded[key] for key in ("seconds", "before", "rss", "peak")})
        return process

    def _make_room(self, wanted: str) -> None:
        """Stop engines, those started first first, until there is room to load another."""
        for name, process in self._processes.items():
            if free_memory() > NEEDED * self._bytes:
                return
            if name != wanted:
                process.stop()

    def _turn(self, name: str, arm: str, prompt: list[int], tokens: int) -> None:
        process, facts = self._up(name, prompt), self.run.engines[name]
        if arm == "steps":
            beside = self._reader.ask("read", cores=self._setting.cores)
            self.run.bandwidth.append(beside)
            times = process.ask("steps", prompt=prompt, repeats=STEPS)
            facts["steps"].append({**times, "bandwidth": list(beside.values())})
        else:
            turn = process.ask("generate", arm=arm, prompt=prompt, tokens=tokens)
            facts["turns"].setdefault(arm, []).append(turn)


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
