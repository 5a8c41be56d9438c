"""How fast programs are judged: overhead of an empty one, and a whole file with some time-outs.

    .venv/bin/python benchmarks/scoring.py                      # 1,000 programs, 1 % time-outs
    .venv/bin/python benchmarks/scoring.py --programs 16400     # HumanEval with 100 samples

The programs are the canonical solutions in turn; a time-out is an endless loop in their place.
`sps score` runs apart, from its start to its figures. Writes results/scoring.json.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from spsbench.hardware.environment import cpu_name, usable_cores
from spsbench.sandbox import orphans
from spsbench.sandbox.choice import survey
from spsbench.sandbox.runner import run
from spsbench.sandbox.verdict import ProgramLimits
from spsbench.tasks.humaneval import HumanEval

OUT = Path(__file__).parents[1] / "results" / "scoring.json"
PROGRAM = "from spsbench.cli.main import main; main()"
LOOP = "    while True: pass\n"
EMPTY = "x = 1"


def overhead(level: str, count: int) -> dict[str, float]:
    """Milliseconds of an empty program, one at a time: of the processor, and of the wall clock."""
    (finding,) = survey(ProgramLimits(), (level,))
    if finding.level is None or not finding.holds:
        return {}
    times = []
    before = processor_seconds()
    for _ in range(count):
        began = time.perf_counter()
        run(finding.level, EMPTY, ProgramLimits())
        times.append(1e3 * (time.perf_counter() - began))
    orphans.wait()
    used = 1e3 * (processor_seconds() - before) / count
    low, middle, high = np.percentile(times, [10, 50, 90])
    found = {"processor": used, "least": min(times), "p10": low, "median": middle, "p90": high}
    return {name: round(value, 1) for name, value in found.items()}


def processor_seconds() -> float:
    """Of this process and of those it has waited for: other work on the machine does not count."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def whole(count: int, share: float, workers: int, level: str) -> dict[str, object]:
    """Seconds of `sps score` on `count` programs of which `share` never end."""
    problems = list(HumanEval().problems.values())
    loops = round(share * count)
    every = count // loops if loops else count + 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.jsonl")
        with path.open("w", encoding="ascii") as file:
            for number in range(count):
                problem = problems[number % len(problems)]
                ends = number % every != every - 1
                completion = problem.canonical_solution if ends else LOOP
                print(json.dumps({"task_id": problem.id, "completion": completion}), file=file)
        command = [sys.executable, "-c", PROGRAM, "score", str(path), "--json", "--allow-partial"]
        command += ["--workers", str(workers), "--sandbox", level]
        began, before = time.monotonic(), processor_seconds()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        seconds, used = time.monotonic() - began, processor_seconds() - before
    found = json.loads(done.stdout)
    return {
        "programs": count,
        "workers": workers,
        "sandbox": found["settings"]["sandbox"],
        "seconds": round(seconds, 1),
        "processor_seconds": round(used, 1),
        "verdicts": {name: n for name, n in found["verdicts"].items() if n},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--timeouts", type=float, default=0.01, help="share that never ends")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--empty", type=int, default=200, help="empty programs of each level")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    found = {
        "command": f"benchmarks/scoring.py {' '.join(sys.argv[1:])}".strip(),
        "processor": cpu_name(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
        "empty_program_ms": {name: overhead(name, asked.empty) for name in ("bwrap", "landlock")},
        "whole": whole(asked.programs, asked.timeouts, asked.workers, asked.sandbox),
        "load_after": round(os.getloadavg()[0], 2),
    }
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    asked.out.write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
