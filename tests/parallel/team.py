"""Ranks as forks of the process that tests: torch and transformers are imported already."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import torch

from spsbench.errors import SpsError
from tests.cli.forked import Forked
from tests.processes import FORK, be_rank, free_port, variables_of


def team(size: int, work: Callable[[], Any]) -> list[Any]:
    """Return what `work` returns on each rank, or the line of its error."""
    port, pipes, ranks = free_port(), [], []
    for rank in range(size):
        here, there = FORK.Pipe(duplex=False)
        ranks.append(FORK.Process(target=_be, args=(rank, size, port, work, there)))
        ranks[-1].start()
        there.close()
        pipes.append(here)
    try:
        return [pipe.recv() for pipe in pipes if pipe.poll(120)]
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _be(rank: int, size: int, port: int, work: Callable[[], Any], answer: Any) -> None:
    be_rank(rank, size, port)
    torch.set_num_threads(1)
    try:
        answer.send(work())
        signal.pause()  # an end would close the connection of a rank that is not as far
    except SpsError as error:
        answer.send(str(error))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def started(*arguments: str, stdin: bytes = b"") -> list[Forked]:
    """Start `sps` as two ranks, the first of which has `stdin`."""
    port = free_port()
    return [
        Forked(*arguments, env=os.environ | variables_of(rank, 2, port), stdin=given)
        for rank, given in enumerate((stdin, b""))
    ]
