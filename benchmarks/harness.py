"""What the harness itself costs: work a record beside its fsync, memory, and time of a report.

Writes a made-up run of ArS and SpS (K = 4) records of 128 tokens with scores through the shipping
writer, then reports it by `sps report`, each in a process of its own.

    .venv/bin/python benchmarks/harness.py                      # 100,000 records, some minutes

writes results/harness.json. Goals: at most 2 ms a record beside the fsync, the same memory after
10,000 records more, and a report over 100,000 records in under 30 s of processor time.
"""

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from spsbench.settings.asked import make_cell
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record, RoundRecord, Score
from spsbench.store.folder import WHOLE
from spsbench.store.manifest import Manifest
from spsbench.store.run import open_run
from spsbench.tasks.scores import write_scores

OUT = Path(__file__).parents[1] / "results" / "harness.json"
TOKENS = 128
ALPHA = 0.8
STEP = 10_000  # records between two looks at the memory
KIB = 1024


def cells() -> list[Cell]:
    return [make_cell(k=0), make_cell(k=4, verifier="sps")]


def record(cell: Cell, sample: str, draw: random.Random) -> Record:
    """A generation of TOKENS tokens whose draft tokens are each kept with probability ALPHA."""
    rounds, left = [], TOKENS
    while left:
        drafted = min(cell.k or 0, left - 1)
        accepted = next((i for i in range(drafted) if draw.random() > ALPHA), drafted)
        times = (draw.uniform(a, a + 0.01) for a in (0.02, 0.005, 0.01))
        tested = min(accepted + 1, drafted)
        overlap = sum(draw.random() for _ in range(tested))
        rounds.append(RoundRecord(drafted, tested, accepted, accepted + 1, overlap, *times))
        left -= accepted + 1
    return Record(
        cell=cell.id,
        sample=sample,
        prompt_tokens=400,
        tokens=[draw.randrange(50_000) for _ in range(TOKENS)],
        text="word " * TOKENS,
        finish="length",
        prefill_seconds=draw.random(),
        rounds=rounds,
    )


def records(count: int) -> Iterator[Record]:
    draw, both = random.Random(0), cells()
    for number in range(count):
        yield record(both[number % 2], f"task/{number // 2}", draw)


def fill(folder: Path, count: int) -> dict[str, object]:
    """Write the run: the work and the wait of `append`, and the peak memory as the run grows."""
    waited = 0.0
    sync = os.fsync

    def timed(file: int) -> None:
        nonlocal waited
        began = time.perf_counter()
        sync(file)
        waited += time.perf_counter() - began

    manifest = Manifest(
        experiment={"title": "harness"},
        cells={cell.id: cell.to_json() for cell in cells()},
        fingerprint={},
        provenance={},
    )
    peaks, spent = [peak_mib()], 0.0
    with open_run(folder, manifest, overwrite=True) as writer:
        os.fsync = timed  # type: ignore[assignment]
        for number, made in enumerate(records(count), start=1):
            began = time.process_time()  # of this process: other work on the machine is not ours
            writer.append(made)
            spent += time.process_time() - began
            if number % STEP == 0:
                peaks.append(peak_mib())
        os.fsync = sync
    scores = (Score(*made.key, {"rouge2": len(made.rounds) / 7}) for made in records(count))
    write_scores(folder, WHOLE, scores)
    return {
        "records": count,
        "cpu_ms_a_record": 1e3 * spent / count,
        "fsync_ms_a_record": 1e3 * waited / count,
        "peak_mib_every_10000": peaks,
        "log_bytes_a_record": sum(p.stat().st_size for p in folder.glob("records-*")) / count,
    }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB


def report(folder: Path) -> dict[str, float]:
    """Processor seconds and peak memory of `sps report`."""
    program = "from spsbench.cli.main import main; main()"
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "report", str(folder)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"sps report failed with status {status}")
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - began,
        "peak_mib": usage.ru_maxrss / KIB,
    }


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--folder", type=Path, help="of the made-up run; kept")
    options.add_argument("--only-report", action="store_true", help="of a run that is there")
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.folder or Path(temporary) / "run"
        figures: dict[str, object] = {
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "python": platform.python_version(),
            }
        }
        if not flags.only_report:
            figures["write"] = fill(folder, flags.records)
        figures["report"] = report(folder)
    text = json.dumps(figures, indent=1)
    flags.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
