"""Made-up records, manifests and runs."""

import resource
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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


def write(
    writer: RunWriter, numbers: Iterable[int], errors: Container[int] = (), **changed: Any
) -> None:
    for number in numbers:
        made = replace(record(number, error="x" if number in errors else None), **changed)
        if writer.is_missing(made.key):
            writer.append(made)


def run(
    folder: Path,
    numbers: Iterable[int],
    of: Manifest | None = None,
    *,
    threads: int = 1,
    errors: Container[int] = (),
    changed: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Open a run, write the missing ones of `numbers`, and return its folder."""
    with open_run(folder, of or manifest(), **options) as writer:
        writer.start(Provenance(threads=threads))
        write(writer, numbers, errors, **(changed or {}))
    return folder


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """Let no file grow beyond `most` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
