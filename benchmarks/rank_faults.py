"""Ranks killed, or stopped, at random times: the other one must end and say why in a line.

    .venv/bin/python benchmarks/rank_faults.py --count 100              # forks, nobody above them
    .venv/bin/python benchmarks/rank_faults.py --count 10 --launched    # sps starts its ranks

A trial is `sps generate --parallel tp` over two ranks with the bundled pair. At a moment drawn from
its whole life, from the first instruction to the last word, one of its ranks gets SIGKILL or
SIGSTOP. Then the other must end by itself within the time limit, with exit code 69 and one line.
Without `--launched` the ranks are forks of this process, which has imported all that is slow, and
no torchrun ends the second for the first: it must find out alone. Prints counts by what happened,
and times from the signal to the end; the exit code is the number of trials that went wrong.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from forked import FORK, be_rank, free_port, sps

PATIENCE = 5.0  # --rank-timeout; less is too little where ranks wait for processors
SLACK = 50.0  # seconds beyond: ranks end by themselves in 10, a launcher takes 10 more
TOGETHER = 20.0  # seconds in which forks must meet
IMPORTS = 300.0  # and the ranks of a command, slow imports and all: who stops before is missed then
LONGEST = 240.0  # of a trial without a fault
ASKED = ["generate", "def f(", "--max-new-tokens", "60", "--ignore-eos", "--seed", "1"]
ASKED += ["--no-stats", "--offline", "--rank-timeout", f"{PATIENCE:g}"]


class Trial:
    """One command of two ranks; `folder` keeps what each process says."""

    def __init__(self, folder: Path, launched: bool) -> None:
        self.folder, self.launched = folder, launched
        self.began = time.monotonic()
        if launched:
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                command = [sys.executable, "-m", "spsbench", *ASKED, "--parallel", "tp:2"]
                self.launcher = subprocess.Popen(command, stdout=out, stderr=err)
        else:
            port = free_port()
            self.ranks = [FORK.Process(target=be, args=(r, port, folder)) for r in (0, 1)]
            for rank in self.ranks:
                rank.start()

    def pids(self) -> dict[int, int]:
        """Rank -> process, of those that are there."""
        if not self.launched:
            alive = {r: p.pid for r, p in enumerate(self.ranks) if p.exitcode is None}
            return {rank: pid for rank, pid in alive.items() if pid is not None}
        found = {}
        tasks = Path(f"/proc/{self.launcher.pid}/task").glob("*/children")
        with contextlib.suppress(OSError):
            for pid in " ".join(each.read_text() for each in tasks).split():
                words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
                rank = next((word[5:] for word in words if word.startswith("RANK=")), "")
                if rank:
                    found[int(rank)] = int(pid)
        return found

    def over(self, victim: int | None) -> bool:
        """Whether all that was not hit has ended."""
        if self.launched:
            return self.launcher.poll() is not None
        return all(p.exitcode is not None for r, p in enumerate(self.ranks) if r != victim)

    def told(self, victim: int | None) -> tuple[int | None, list[str]]:
        """The exit code, and the lines for a user, of who was not hit."""
        if self.launched:
            lines = (self.folder / "err").read_text().splitlines()
            return self.launcher.returncode, [line for line in lines if line.startswith("error")]
        rank = 0 if victim != 0 else 1
        file = self.folder / f"error-{rank}"
        said = [json.loads(file.read_text())["message"]["message"]] if file.exists() else []
        return self.ranks[rank].exitcode, said

    def close(self) -> None:
        """End what is left."""
        for pid in self.pids().values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in (self.launcher,) if self.launched else self.ranks:
            process.kill()
            process.wait() if isinstance(process, subprocess.Popen) else process.join()


def be(rank: int, port: int, folder: Path) -> None:
    """Rank `rank`, with the command line's own `main`."""
    be_rank(rank, 2, port)
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / f"error-{rank}")
    for number, name in ((1, f"out-{rank}"), (2, f"err-{rank}")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), number)
    from spsbench.api import ranks

    ranks.TOGETHER = TOGETHER
    code = sps([*ASKED, "--parallel", "tp"])
    sys.stdout.flush()
    os._exit(code)


def life(launched: bool) -> float:
    """Seconds of a trial that nobody disturbs."""
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name), launched)
        try:
            while not trial.over(None):
                time.sleep(0.05)
                if time.monotonic() - trial.began > LONGEST:
                    raise SystemExit("a trial without a fault does not end")
            code, lines = trial.told(None)
            if code != 0 or lines:
                files = sorted([*Path(name).glob("err*"), *Path(name).glob("out*")])
                said = "".join(f"\n{file.name}: {file.read_text()}" for file in files)
                raise SystemExit(f"a trial without a fault failed: {code} {lines}{said}")
            return time.monotonic() - trial.began
        finally:
            trial.close()


def attempt(draw: random.Random, whole: float, launched: bool) -> dict[str, Any]:
    """One fault, and what came of it."""
    victim, kind = draw.choice((0, 1)), draw.choice((signal.SIGKILL, signal.SIGSTOP))
    at = draw.uniform(0, whole)
    told: dict[str, Any] = {"rank": victim, "signal": kind.name, "at": round(at, 2)}
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name), launched)
        try:
            while time.monotonic() - trial.began < at or (
                victim not in trial.pids() and not trial.over(victim)
            ):
                time.sleep(0.02)
            pids = trial.pids()
            if victim not in pids or trial.over(None):
                return told | {"became": "over before"}
            with contextlib.suppress(OSError):
                os.kill(pids[victim], kind)
            hit = time.monotonic()
            limit = SLACK + (IMPORTS if launched else PATIENCE)
            while not trial.over(victim) and time.monotonic() - hit < limit:
                time.sleep(0.02)
            told["seconds"] = round(time.monotonic() - hit, 2)
            if not trial.over(victim):
                return told | {"became": "HANGS"}
            code, lines = trial.told(victim)
            told |= {"code": code, "lines": lines}
            if code == 0 and not lines:
                return told | {"became": "had done its work"}
            right = code == 69 and len(lines) == 1 and "\n" not in lines[0]
            return told | {"became": "ended in a line" if right else "WRONG"}
        finally:
            trial.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launched", action="store_true", help="by sps itself, with its launcher")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no trial after them")
    asked = parser.parse_args()
    import torch

    import spsbench.api.pair
    import spsbench.engines.shared
    import spsbench.models.shares  # noqa: F401

    torch.set_num_threads(1)
    draw, whole = random.Random(asked.seed), life(asked.launched)
    print(f"a trial without a fault: {whole:.1f} s", flush=True)
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    while len(found) < asked.count and time.monotonic() - began < asked.seconds:
        found.append(attempt(draw, whole, asked.launched))
        if not asked.launched or found[-1]["became"].isupper():
            print(json.dumps(found[-1]), flush=True)
    counts = Counter((each["signal"], each["became"]) for each in found)
    for (kind, became), count in sorted(counts.items()):
        took = [
            each["seconds"]
            for each in found
            if (each["signal"], each["became"]) == (kind, became) and "seconds" in each
        ]
        longest = f", at most {max(took):.1f} s" if took else ""
        print(f"{kind}: {became}: {count}{longest}")
    sys.exit(sum(each["became"].isupper() for each in found))


if __name__ == "__main__":
    main()
