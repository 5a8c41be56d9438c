"""Several ranks as one command: rank 0 runs it, the others are quiet; one line at the end."""

import json
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from spsbench.api.ranks import agree, dismiss, follow, meet
from spsbench.cli.failures import debugging, described, exit_code
from spsbench.cli.safe import one_line
from spsbench.errors import Exit
from spsbench.hardware.ranks import (
    LOST,
    OURS,
    MissingRanksError,
    check_room,
    end_with_launcher,
    ranks,
    usual_threads,
)

ERRORS = "TORCHELASTIC_ERROR_FILE"  # where torchrun reads why a rank has failed
GRACE = 10  # seconds between asking ranks to end and ending them

Done = TypeVar("Done")

_left: list[str] = []  # why this rank ends, once that is known
_terminals: list[tuple[int, Any]] = []  # as they were when it began


def led(command: Callable[[], int]) -> int:
    """Rank 0, or a single process: `command`; ranks that serve it are let go after it."""
    if ranks().size == 1:
        return command()
    end_with_launcher()
    if learns():
        return learned(command)
    with suppress(termios.error):
        _terminals.append((0, termios.tcgetattr(0)))
    code = exit_code(lambda: meet(ends=end_at_once)) or command()
    return code or exit_code(dismiss)


def learned(command: Callable[[], Done]) -> Done:
    """A rank of those that learn together: each runs the command."""
    agree(ends=end_at_once)
    return command()


def learns() -> bool:
    """Whether this command is run by each of its ranks, which learn together."""
    return sys.argv[1:2] == ["train"]


def served() -> None:
    """Another rank: meet the others, and work for rank 0 to its end."""
    meet(ends=end_at_once)
    follow()


def followed(work: Callable[[], object] = served) -> int:
    """Another rank: work for rank 0 in silence; how it failed is left for who started the ranks."""
    end_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides, and ends the others by its end
    if not debugging():
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
    try:
        work()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        line, code = described(error)
        leave(line)
        return code
    return Exit.OK


def end_at_once(line: str) -> NoReturn:
    """Another rank is lost, and this one waits for it where no exception reaches it."""
    told = bool(_left)
    leave(line)
    with suppress(termios.error):  # a prompt at which somebody types hides what is typed
        for terminal, mode in _terminals:
            termios.tcsetattr(terminal, termios.TCSANOW, mode)
    if not told and not told_elsewhere(line):
        shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a bar of progress hides the cursor
        os.write(2, f"{shown}error: {one_line(line)}\n".encode(errors="replace"))
    os._exit(Exit.UNAVAILABLE)


def gone(code: int) -> NoReturn:
    """End another rank at once: rank 0 has closed its connections, and gloo aborts over that."""
    os._exit(code)


def told_elsewhere(line: str) -> bool:
    """Whether who started the ranks will say why the command failed: another rank ended first."""
    return OURS in os.environ and LOST in line


def leave(line: str) -> None:
    """Write why this rank ends to where torchrun looks for it."""
    _left.append(line)
    path = os.environ.get(ERRORS)
    if path is None:
        return
    extra = {"timestamp": str(int(time.time()))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": line, "extraInfo": extra}}, file)


def start(missing: MissingRanksError) -> int:
    """Run this very command over several ranks, as torchrun does; the exit code of rank 0.

    A rank that dies ends the others within seconds, and is told in one line.

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
    os.environ[OURS] = "1"
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
    try:
        elastic_launch(config, sys.executable)("-m", "spsbench", *sys.argv[1:])
    except ChildFailedError as error:
        return _told(error.failures)
    except SignalException as error:
        number = signal.Signals(error.sigval)
        return Exit.INTERRUPTED if number == signal.SIGINT else 128 + number
    return Exit.OK


def _told(failures: Mapping[int, Any]) -> int:
    """Say in a line which rank failed first, and why, unless rank 0 has said it itself."""
    found = {rank: _reason(failure) for rank, failure in failures.items()}
    first = next((rank for rank, why in found.items() if LOST not in why), None)
    rank = min(found) if first is None else first
    code = failures[rank].exitcode
    if rank != 0 or code < 0:
        line = f"rank {rank} failed: {found[rank]}"
        print(f"error: {one_line(line)}", file=sys.stderr)
    return code if code > 0 else Exit.UNAVAILABLE


def _reason(failure: Any) -> str:
    if failure.exitcode < 0:
        return (
            f"it was ended by {failure.signal_name()} (process {failure.pid}): expected all ranks "
            "to live. Look for what ended it, such as too little memory, and start again"
        )
    told = failure.message
    return str(told["message"] if isinstance(told, dict) else told)
