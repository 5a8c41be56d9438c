"""Commands over ranks that torchrun starts: all run them, and rank 0 alone prints."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from spsbench.cli.process.failures import debugging, exit_code
from spsbench.errors import Exit

IN_STEP = ("generate", "bench", "verify")  # commands whose models ranks may share


def run_silently(command: Callable[[], object]) -> int:
    """Run `command` on another rank than the first; an error is written for torchrun."""
    if not set(sys.argv[1:2]) & set(IN_STEP):
        return Exit.OK
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides, and its end ends the others
    if not debugging():
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
    return exit_code(command)


def exit_rank(code: int) -> NoReturn:
    """End another rank at once, since gloo aborts if its shutdown follows the end of rank 0."""
    os._exit(code)
