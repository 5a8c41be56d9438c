"""Two runs but for what depends on the machine: their records, byte for byte, in order of key."""

import json
from pathlib import Path

from spsbench.store.log import iterate
from spsbench.store.run_folder import record_logs

TIMED = slice(5, 9)  # of a round
OF_MACHINE = {"machine", "n", "crc", "attempt", "prefill_seconds", "peak_memory_mib", "flags"}


def bare(folder: Path) -> list[bytes]:
    """Return every line without times, machines and flags of timing."""
    lines = []
    for values in (values for log in record_logs(folder).values() for values in iterate(log)):
        if "start" in values or "note" in values:
            continue
        for round_ in values["rounds"]:
            round_[TIMED] = [0] * len(round_[TIMED])
        kept = {name: value for name, value in values.items() if name not in OF_MACHINE}
        lines.append(json.dumps(kept, sort_keys=True).encode())
    return sorted(lines)
