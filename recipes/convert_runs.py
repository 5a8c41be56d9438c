"""Convert runs of schema 6, whose manifest has the starts of a run, to 7, whose logs have them.

    python recipes/convert_runs.py RUN ...     # in place

Where a log lacks, its starts are left out; records, scores and cells stay as they are.
"""

import json
import sys
from pathlib import Path
from typing import Any

from spsbench.store.atomic import replace_file
from spsbench.store.log import encode_record, iterate

OF_START = ("started", "machine", "clock")
OF_MANIFEST = ("experiment", "cells", "fingerprint", "created", "tool")


def lines(log: Path, starts: list[dict[str, Any]], engines: Path) -> list[dict[str, Any]]:
    """Return the lines of a log, each start with its counters before its first record."""
    layouts = json.loads(engines.read_text()) if engines.exists() else {}
    converted: list[dict[str, Any]] = []
    records = [values for values in iterate(log) if "start" not in values]
    for number in range(len(records) + 1):
        for old in starts:
            if old["first"] == number and number < len(records):
                start = {name: old[name] for name in OF_START if name in old}
                provenance = old.get("provenance") or {}
                start["provenance"] = {n: value for n, value in provenance.items() if value}
                start |= {"engines": layouts, "counters": old.get("counters", {})}
                converted.append({"start": {name: value for name, value in start.items() if value}})
        converted += records[number : number + 1]
    return converted


def convert(run: Path) -> None:
    """Write the logs and the manifest of a run anew; the manifest last."""
    path = run / "manifest.json"
    old = json.loads(path.read_text())
    if old["schema"] != 6:
        sys.exit(f"{run}: schema {old['schema']}, expected 6")
    for log in sorted(run.glob("records-*.jsonl")):
        shard = log.name.removeprefix("records-").removesuffix(".jsonl")
        starts = [start for start in old["segments"] if start["shard"] == shard]
        engines = run / f"engines-{shard}.json"
        numbered = enumerate(lines(log, starts, engines))
        replace_file(log, b"".join(encode_record(number, values) for number, values in numbered))
        engines.unlink(missing_ok=True)
    new = {name: old[name] for name in OF_MANIFEST} | {"schema": 7}
    replace_file(path, (json.dumps(new, indent=1) + "\n").encode("ascii"))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        convert(Path(argument))
