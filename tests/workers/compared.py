"""Two runs but for what depends on the machine: their records, byte for byte, in order of key."""

import json
from pathlib import Path

from spsbench.store.log import iterate
from spsbench.store.run_folder import record_logs

TIMED = slice(5, 9)  # of a round
OF_MACHINE = {"machine", "n", "crc", "attempt", "prefill_seconds", "peak_memory_mib", "flags"}


def bare(folder: Path) -> list[bytes]:
    """Every line without times, machines and flags of timing."""
    found = []
    for log in record_logs(folder).values():
        for values in iterate(log):
            for name in OF_MACHINE & values.keys():
                del values[name]
            for round_ in values["rounds"]:
                round_[TIMED] = [0] * len(round_[TIMED])
            found.append(json.dumps(values, sort_keys=True).encode())
    return sorted(found)
