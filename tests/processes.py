"""Commands and ranks as forks of a process that has imported what is slow."""

import multiprocessing
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

FORK = multiprocessing.get_context("fork")


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def variables_of(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank of this machine in its environment."""
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in named.items()}


def be_rank(rank: int, size: int, port: int) -> None:
    """This process is told so."""
    os.environ |= variables_of(rank, size, port)


def fork(work: Callable[[], int]) -> int:
    """Have a fork do it, and end with the code that it returns; its process."""
    with warnings.catch_warnings():  # later Pythons warn of threads: those of the parent wait
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def sps(arguments: Sequence[str]) -> int:
    """The exit code of `sps` with these arguments, in this process."""
    from spsbench.cli.main import main

    sys.argv = ["sps", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
