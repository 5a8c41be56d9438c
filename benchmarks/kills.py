"""Workers or the driver killed at random times: what is left must equal a run without kills.

    python benchmarks/kills.py --whom worker --kills 20 --gap 12     # also --of texts
    python benchmarks/kills.py --whom driver --kills 20
    python benchmarks/kills.py --whom worker --kills 5 --on ray

A run is `sps bench --on processes:2` (or `--on ray`) over a tiny pair of models, begun and gone on
with by `--resume` where a kill (SIGKILL) or a loss has ended it. Each run is compared with one of a
single process: every byte but times. Prints counts; the exit code is 1 where a run is another one,
hangs, or leaves a worker behind.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.folders import byte_tokenizer, random_model, save
from tests.workers.compared import bare

MARK = "SPS_KILLS"  # a variable in the environment of a command and of all that it starts
WORKERS = (b"--multiprocessing-fork", b"ray::Actor")
PROMPTS, HANGS, ENDS = 12, 300.0, 60.0  # seconds: of a run without an end; until workers are gone


def words_of(of: str, place: Path) -> tuple[list[str], Callable[[Path], list[bytes]]]:
    """The command, and what of its folder no kill may change."""
    target = str(save(place / "target", random_model(), byte_tokenizer()))
    draft = str(save(place / "draft", random_model(noise=0.1), byte_tokenizer()))
    if of == "texts":
        words = ["train", "draft", "--target", target, "--count", "256", "--tokens", "8"]
        words += ["--steps", "1", "--evaluations", "1", "--cost-seconds", "0", "--layers", "1"]
        return words, lambda folder: (folder / "texts.jsonl").read_bytes().splitlines()
    prompts = place / "prompts.jsonl"
    rows = ({"id": str(n), "prompt": f"one two three {n} one two"} for n in range(PROMPTS))
    prompts.write_text("\n".join(map(json.dumps, rows)))
    words = ["bench", f"jsonl:path={prompts}", "--target", target, "--draft", draft]
    words += ["--engine", "eager", "-k", "2", "--samples", "2", "--max-new-tokens", "12"]
    return [*words, "--warmup", "0"], bare


def workers(mark: str) -> list[int]:
    """The processes that work under a command."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (each / "cmdline").read_bytes()
            ours = f"{MARK}={mark}".encode() in (each / "environ").read_bytes()
            if (ours or name.startswith(b"ray::")) and any(word in name for word in WORKERS):
                found.append(int(each.name))
    return found


class Trials:
    """Runs that are killed, and what came of them."""

    def __init__(self, asked: argparse.Namespace, place: Path) -> None:
        self.asked, self.place, self.draw = asked, place, random.Random(asked.seed)
        self.words, self.compared = words_of(asked.of, place)
        self.kills = self.runs = self.gave_up = 0
        self.wrong: list[str] = []

    def start(self, folder: Path, on: str) -> tuple[subprocess.Popen[bytes], str]:
        """Begin or go on with a run; its process, and the mark of all that it starts."""
        mark = uuid.uuid4().hex
        command = [sys.executable, "-m", "spsbench", *self.words, "--threads", "1", "--on", on]
        command += ["--out", str(folder), *(["--resume"] if folder.exists() else [])]
        with (self.place / "out").open("ab") as out:
            env = os.environ | {MARK: mark}
            return subprocess.Popen(command, stdout=out, stderr=out, env=env), mark

    def strike(self, process: subprocess.Popen[bytes], mark: str) -> None:
        """Kill one of them at a moment that is drawn, or let the command end."""
        gap = self.asked.gap
        until = time.monotonic() + self.draw.uniform(0.3 * gap, 1.7 * gap)
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        there = [process.pid] if self.asked.whom == "driver" else workers(mark)
        if process.poll() is None and there and self.kills < self.asked.kills:
            with suppress(ProcessLookupError):
                os.kill(self.draw.choice(there), signal.SIGKILL)
                self.kills += 1

    def run(self, folder: Path, expected: list[bytes]) -> None:
        """One run, begun again until it is whole."""
        code, began = None, time.monotonic()
        while code != 0:
            process, mark = self.start(folder, self.asked.on)
            while process.poll() is None:
                self.strike(process, mark)
                if time.monotonic() - began > HANGS:
                    self.wrong.append(f"{folder.name} hangs")
                    process.kill()
            code = process.wait()
            self.gave_up += code == 69
            gone = time.monotonic() + ENDS
            while (left := workers(mark)) and time.monotonic() < gone:
                time.sleep(0.05)
            if left:
                self.wrong.append(f"{folder.name}: workers {left} outlive their driver")
            if code not in (0, 69, -signal.SIGKILL) or self.wrong:
                self.wrong.append(f"{folder.name} ended with {code}")
                return
        self.runs += 1
        if sorted(self.compared(folder)) != sorted(expected):
            self.wrong.append(f"{folder.name} is another")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whom", choices=("worker", "driver"), default="worker")
    parser.add_argument("--of", choices=("bench", "texts"), default="bench")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--gap", type=float, default=10.0, help="mean seconds between two kills")
    parser.add_argument("--on", default="processes:2")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        trials = Trials(asked, Path(name))
        alone, _ = trials.start(Path(name) / "alone", "here")
        if alone.wait(HANGS):
            raise SystemExit((Path(name) / "out").read_text())
        expected = trials.compared(Path(name) / "alone")
        while trials.kills < asked.kills and not trials.wrong:
            trials.run(Path(name) / f"run-{trials.runs}", expected)
        found = {"kills": trials.kills, "equal": trials.runs, "gave up": trials.gave_up}
        print(json.dumps(vars(asked) | found | {"wrong": trials.wrong}))
        if trials.wrong:
            print((Path(name) / "out").read_text()[-3000:], file=sys.stderr)
    raise SystemExit(bool(trials.wrong))


if __name__ == "__main__":
    main()
