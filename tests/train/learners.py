"""Ranks that learn together, as forks of the process that tests: what each of them returns."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from spsbench.train.team import team

FORK = multiprocessing.get_context("fork")


def learn(size: int, work: Callable[[Any], Any]) -> list[Any]:
    """What `work` returns, or raises, on each rank; None: it was ended."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    pipes = [FORK.Pipe(duplex=False) for _ in range(size)]
    made = [
        FORK.Process(target=_rank, args=(rank, size, port, work, pipes[rank][1]))
        for rank in range(size)
    ]
    for process in made:
        process.start()
    for _, there in pipes:
        there.close()
    try:
        return [_answer(here) for here, _ in pipes]
    finally:
        for process in made:
            process.join(30)
            if process.is_alive():
                process.kill()


def _answer(here: Any) -> Any:
    try:
        return here.recv() if here.poll(120) else "nothing in two minutes"
    except EOFError:
        return None


def _rank(rank: int, size: int, port: int, work: Callable[[Any], Any], answer: Any) -> None:
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in named.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    try:
        answer.send(work(team()))
    except Exception as error:
        answer.send(error)
        os._exit(1)
    os._exit(0)
