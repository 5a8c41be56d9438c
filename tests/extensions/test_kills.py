"""Commands killed at random times: after `--resume` nothing is lost, doubled or changed.

`SPS_KILLS=100 SPS_SEED=7 pytest -m slow -s tests/extensions/test_kills.py` chooses kills and seed,
which is printed.
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from spsbench.store.log import iterate
from tests.cli.forked import Forked
from tests.extensions.sandbox.samples import LEVEL, right, written
from tests.folders import byte_tokenizer, random_model, save
from tests.oracles.command import environment
from tests.oracles.stub import Engine, Stub, serving
from tests.waiting import wait_until
from tests.workers.compared import bare

KILLS = int(os.environ.get("SPS_KILLS", "25"))
SEED = int(os.environ.get("SPS_SEED", random.randrange(10**6)))
PATIENCE = 300  # seconds of a run without an end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

Words = Callable[[Path, bool], list[str]]  # of a run in a folder; and whether it goes on


def lines_of(folder: Path) -> dict[str, list[str]]:
    """Return the lines of each log that are whole, without what each start writes."""
    return {
        path.name: [
            json.dumps(values, sort_keys=True)
            for values in iterate(path)
            if not values.keys() & {"start", "note"}
            and values.get("key") != "options"
            and "takes_ids" not in str(values.get("value"))
        ]
        for path in sorted(folder.rglob("*.jsonl"))
        if path.stat().st_size and b'"crc":' in path.read_bytes()
    }


def run(arguments: list[str], seconds: float | None = None) -> int:
    """Return the exit code of a command, which is killed after `seconds`."""
    command = Forked(*arguments, env=environment())
    if seconds is not None:
        wait_until(lambda: command.poll() is not None, seconds)
        command.kill()
    _, err = command.communicate(PATIENCE)
    assert command.returncode in (0, -9), err.decode()
    return command.returncode


def kill_and_resume(words: Words, content: Callable[[Path], object], place: Path) -> None:
    """Kill runs until `KILLS` kills have met one; compare each that ends with one without kills."""
    print(f"SPS_SEED={SEED}")
    draw, kills, runs = random.Random(SEED), 0, 0
    (place / "began").touch()
    assert run(words(place / "alone", False)) == 0
    ended = max(path.stat().st_mtime for path in (place / "alone").rglob("*"))
    seconds, expected = ended - (place / "began").stat().st_mtime, content(place / "alone")
    while True:
        folder = place / f"killed-{runs}"
        resumes, before = False, dict[str, list[str]]()
        while True:
            wait = draw.uniform(0, seconds) if kills < KILLS else None
            code = run(words(folder, resumes), wait)
            resumes = folder.exists() and any(folder.iterdir())
            after = lines_of(folder)
            for name, lines in before.items():
                assert after[name][: len(lines)] == lines, "a line was lost or changed"
            twice = [line for lines in after.values() for line in lines if lines.count(line) > 1]
            assert not twice, f"twice: {twice[0]}"
            before = after
            if code == 0:
                break
            kills += 1
        assert content(folder) == expected
        runs += 1
        if kills >= KILLS:
            print(f"{kills} kills, {runs} runs")
            return


@pytest.mark.parametrize("on", ["here", "processes:2"])
def test_killed_benchmarks(on, tmp_path):
    words = ["bench", "latency", "--limit", "6", "-k", "3", "--max-new-tokens", "48", "--offline"]
    words += ["--engine", "eager", "--warmup", "0", "--threads", "1", "--on", on]

    def of_run(folder: Path, resumes: bool) -> list[str]:
        return [*words, "--out", str(folder), *["--resume"] * resumes]

    kill_and_resume(of_run, bare, tmp_path)


def test_killed_checks(tmp_path):
    def keys(folder: Path) -> object:
        lines = list(iterate(folder / "kept.jsonl"))
        return {line["key"] for line in lines if "key" in line}

    with serving(Stub(Engine())) as url:

        def of_run(folder: Path, resumes: bool) -> list[str]:
            folder.mkdir(exist_ok=True)
            kept = str(folder / "kept.jsonl")
            words = ["check", url, "-n", "64", "--only", "law", "--bias", "0.2", "--timeout", "20"]
            return [*words, "--resume" if resumes else "--keep", kept]

        kill_and_resume(of_run, keys, tmp_path)


def test_killed_trainings(tmp_path):
    target = str(save(tmp_path / "target", random_model(), byte_tokenizer()))
    words = ["train", "head", "--kind", "mlp", "--target", target, "--count", "12", "--tokens"]
    words += ["12", "--batch-tokens", "64", "--micro-tokens", "64", "--steps", "24"]
    words += ["--evaluations", "4", "--cost-seconds", "0", "--save-as", "float32"]

    def of_run(folder: Path, resumes: bool) -> list[str]:
        return [*words, "--out", str(folder), *["--resume"] * resumes]

    def weights(folder: Path) -> object:
        (path,) = folder.glob("*/*.safetensors")
        return path.read_bytes()

    kill_and_resume(of_run, weights, tmp_path)


def test_killed_scorings(tmp_path):
    samples = [*right(40), *((task, "    pass\n") for task, _ in right(20))]

    def of_run(folder: Path, resumes: bool) -> list[str]:
        folder.mkdir(exist_ok=True)
        path = written(folder / "samples.jsonl", samples)
        return ["score", str(path), "--allow-partial", *LEVEL]

    def verdicts(folder: Path) -> object:
        lines = (folder / "samples.jsonl_results.jsonl").read_text().splitlines()
        return [(line["task_id"], line["passed"]) for line in map(json.loads, lines)]

    kill_and_resume(of_run, verdicts, tmp_path)
