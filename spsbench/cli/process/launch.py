"""The launch of a command over several ranks by torchelastic, and the errors that it is told."""

import json
import os
import signal
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from spsbench.cli.output.terminal import one_line
from spsbench.errors import Exit
from spsbench.hardware.ranks import LOST, OURS, MissingRanksError, check_room, usual_threads

ERRORS = "TORCHELASTIC_ERROR_FILE"  # torchrun reads the error of a failed rank here
GRACE = 10  # seconds from the request to end until ranks are killed


def is_reported_by_launcher(line: str) -> bool:
    """Return whether the launcher reports the failure, since another rank failed first."""
    return OURS in os.environ and LOST in line


def write_error_file(line: str) -> None:
    """Write the error of this rank to the file that torchelastic reads."""
    path = os.environ.get(ERRORS)
    if path is None:
        return
    extra = {"timestamp": str(int(time.time()))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": line, "extraInfo": extra}}, file)


def start(missing: MissingRanksError) -> int:
    """Run this command over several ranks, as torchrun does, and return its exit code.

    torchelastic ends the other ranks when one fails, and the failure is one line.

    Raises:
        UsageError: more ranks than this machine has room for.
    """
    import logging
    import uuid

    import torch
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    check_room(missing.size, 0 if missing.device == "cpu" else torch.cuda.device_count())
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ[OURS] = str(os.getpid())
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings would precede the line
    os.environ.setdefault("OMP_NUM_THREADS", str(usual_threads(missing.size)))
    if missing.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=missing.size,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=GRACE,
        logs_specs=DefaultLogsSpecs(),
    )
    terminal = None
    with suppress(termios.error):  # a prompt for hidden input
        terminal = termios.tcgetattr(0)
    try:
        elastic_launch(config, sys.executable)("-m", "spsbench", *sys.argv[1:])
    except ChildFailedError as error:
        return _report(error.failures)
    except SignalException as error:
        number = signal.Signals(error.sigval)
        return Exit.INTERRUPTED if number == signal.SIGINT else 128 + number
    finally:
        if terminal is not None:
            termios.tcsetattr(0, termios.TCSANOW, terminal)
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h")  # a progress bar hides the cursor
    return Exit.OK


def _report(failures: Mapping[int, Any]) -> int:
    """Print the rank that failed first, unless rank 0 has printed it; return the exit code."""
    reasons = {rank: _reason(failure) for rank, failure in failures.items()}
    first = next((rank for rank, why in reasons.items() if LOST not in why), None)
    rank = min(reasons) if first is None else first
    code = failures[rank].exitcode
    if rank != 0 or code < 0:
        line = f"rank {rank} failed: {reasons[rank]}"
        print(f"error: {one_line(line)}", file=sys.stderr)
    return code if code > 0 else Exit.UNAVAILABLE


def _reason(failure: Any) -> str:
    if failure.exitcode < 0:
        return (
            f"it was ended by {failure.signal_name()} (process {failure.pid}): expected all ranks "
            "to live. Look for what ended it, such as too little memory, and start again"
        )
    message = failure.message
    return str(message["message"] if isinstance(message, dict) else message)
