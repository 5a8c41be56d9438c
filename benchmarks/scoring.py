"""How fast programs are judged, and what the sandbox costs each.

Writes canonical solutions of HumanEval, wrong ones and, one in a hundred, endless ones, scores them
with `sps score` as a user would, and counts. Beside it, in turn in the same run: one program at a
time at each level and in a bare interpreter, for the overhead of a level.

    .venv/bin/python benchmarks/scoring.py --programs 1640

writes results/scoring.json; 16,400 programs are what HumanEval at 100 samples a problem needs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spsbench.environment import cpu_name, usable_cores
from spsbench.sandbox.choice import AUTO
from spsbench.sandbox.interpreter import python
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.program import run
from spsbench.sandbox.selftest import holds
from spsbench.tasks.humaneval import HumanEval

OUT = Path(__file__).parents[1] / "results" / "scoring.json"
TURNS = 60  # programs a level, alternating


def completions(count: int) -> list[dict[str, str]]:
    """Right and wrong in turn, each text once; every hundredth never ends."""
    problems = list(HumanEval().problems.values())
    made = []
    for number in range(count):
        problem = problems[number % len(problems)]
        text = problem.canonical_solution if number % 2 else "    return None\n"
        if number % 100 == 99:
            text = "    while True: pass\n"
        made.append({"task_id": problem.id, "completion": f"{text}    # {number}\n"})
    return made


def score(count: int) -> dict[str, float]:
    """Seconds for `count` programs, the start of the command among them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "samples.jsonl")
        file.write_text("".join(json.dumps(line) + "\n" for line in completions(count)))
        began = time.perf_counter()
        command = [sys.executable, "-m", "spsbench", "score", str(file), "--allow-partial"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        kinds: dict[str, int] = {}
        for line in Path(f"{file}_verdicts.jsonl").read_text().splitlines()[1:]:
            verdict = json.loads(line)["verdict"]
            kinds[verdict] = kinds.get(verdict, 0) + 1
    return {"programs": count, "seconds": round(seconds, 2), **kinds}


def overheads() -> dict[str, dict[str, float]]:
    """Milliseconds of one empty program, a level beside a bare interpreter, in turn."""
    levels = [level for level in AUTO if holds(level).holds]
    times: dict[str, list[float]] = {"bare": [], **{level.name: [] for level in levels}}
    for _ in range(TURNS):
        began = time.perf_counter()
        subprocess.run([python(), "-I", "-S", "-B", "-c", "import json"], check=True, env={})
        times["bare"].append(time.perf_counter() - began)
        for level in levels:
            times[level.name].append(run("", level, Limits()).seconds)
    return {
        name: {
            "median_ms": round(1e3 * statistics.median(each), 1),
            "p90_ms": round(1e3 * statistics.quantiles(each, n=10)[-1], 1),
        }
        for name, each in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1640)
    count = parser.parse_args().programs
    found = {
        "command": f"benchmarks/scoring.py --programs {count}",
        "machine": f"{cpu_name()}, {usable_cores()} cores",
        "one_program": overheads(),
        "score": score(count),
    }
    found["minutes_for_16400"] = round(found["score"]["seconds"] / count * 16_400 / 60, 1)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
