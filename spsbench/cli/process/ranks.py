"""Commands over several ranks: torchrun starts the ranks, and rank 0 runs the command."""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from spsbench.cli.process.failures import debugging, described, exit_code, write_error_file
from spsbench.errors import Exit
from spsbench.hardware.ranks import ranks


def run_on_rank_0(command: Callable[[], int]) -> int:
    """Run `command` on rank 0, or in a single process, and dismiss the ranks that serve it."""
    if ranks().size == 1:
        return command()
    from spsbench.models.prepare import dismiss

    return exit_code(meet) or command() or exit_code(dismiss)


def meet() -> None:
    """Open the store at which the other ranks wait, for the life of this process."""
    from spsbench.parallel.process_group import open_store

    open_store()


def run_other_rank() -> int:
    """Serve rank 0 silently to its end; an error is written for torchrun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides, and its end ends the others
    if not debugging():
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
    try:
        serve_rank_0()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        line, code = described(error)
        write_error_file(line)
        return code
    return Exit.OK


def serve_rank_0() -> None:
    """Serve rank 0; its store must open within minutes."""
    from spsbench.models.prepare import check_environment, check_packages, follow

    check_environment()
    check_packages()

    from spsbench.parallel.process_group import MEETING

    follow(MEETING)


def exit_rank(code: int) -> NoReturn:
    """End another rank at once, since gloo aborts if its shutdown follows the end of rank 0."""
    os._exit(code)
