"""Made-up records and manifests, and a run that writes them: a program to be killed."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spsbench.settings.records import Record, RoundRecord
from spsbench.store.manifest import Manifest
from spsbench.store.run import RunWriter, open_run
from spsbench.store.starts import Provenance

FINGERPRINT = {
    "target.revision": None,
    "draft.files.model.safetensors": "facade",
    "temperature": 0.8,
    "top_p": 0.95,
    "k": [0, 4],
    "stop": ["\n\n"],
    "seed": 0,
}
HERE = Provenance(hardware={"cpu": "made up"})


def manifest(**changed: object) -> Manifest:
    return Manifest(
        experiment={"task": "humaneval"},
        cells={"c0": {"k": 0}, "c4": {"k": 4}},
        fingerprint=FINGERPRINT | changed,
    )


def record(number: int, *, cell: str = "c4", error: str | None = None) -> Record:
    rounds = [
        RoundRecord(4, 3, 2, 3, 1.5, 0.01, 0.004, 0.005),
        RoundRecord(4, -1, 4, 5, None, 1e-9, 0.1, 0),
    ]
    return Record(
        cell=cell,
        sample=f"task/{number // 2}",
        repeat=number % 2,
        prompt_tokens=number,
        tokens=[] if error else [number, 2, 3, 4, 5, 6, 7, 8],
        text="" if error else f'"{number}"\n\x1b[31m\u2028 ünïcode \ud800',
        finish="error" if error else "length",
        prefill_seconds=0.25,
        rounds=[] if error else rounds,
        error=error,
        flags=("first",) if number == 0 else (),
    )


def write(writer: RunWriter, count: int) -> None:
    for number in range(count):
        made = record(number)
        if writer.is_missing(made.key):
            writer.append(made)
            print(number, flush=True)


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """Let no file grow beyond `most` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


if __name__ == "__main__":
    with open_run(Path(sys.argv[1]), manifest(), resume=True) as writer:
        writer.start(HERE)
        write(writer, int(sys.argv[2]))
