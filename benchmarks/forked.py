"""Ranks as forks of a process that has imported what is slow."""

import multiprocessing
import os
import socket

FORK = multiprocessing.get_context("fork")


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def be_rank(rank: int, size: int, port: int) -> None:
    """What torchrun tells a rank of this machine, in this process's environment."""
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in named.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
