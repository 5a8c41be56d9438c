"""A connection to a Ray cluster: the one at an address, or one of this machine, started here."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spsbench.errors import UnavailableError, first_line
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import NO_RAY

REACH = 10.0  # seconds in which whoever is at an address must answer
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
PLAIN = {  # Ray's own choices: 15, so that any other work goes first; 30 s, too few on a busy one
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


def connected(address: str) -> Any:
    """Ray, connected to the cluster at an address; without one a cluster is started.

    Raises:
        UnavailableError: Ray is not installed, or no cluster is there.
    """
    ray = load()
    reach(address)
    given: dict[str, Any] = (
        {"address": address}
        if address
        else {
            "address": "local",  # even beside a cluster that this machine is a part of
            "num_cpus": usable_cores(),
            "include_dashboard": False,
        }
    )
    for name, value in (QUIET if address else QUIET | PLAIN).items():
        os.environ.setdefault(name, value)
    try:
        with own_signals():
            ray.init(**given, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # some of Ray's are of no kind of their own
        raise no_cluster(address, error) from error
    return ray


def load() -> Any:
    """Ray itself.

    Raises:
        UnavailableError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(NO_RAY) from error
    return ray


def reach(address: str) -> None:
    """Look whether anything listens at HOST:PORT: Ray itself would ask for five minutes.

    Raises:
        UnavailableError: nothing does.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        name = host.removeprefix("ray://").strip("[]")  # of an IPv6 address
        socket.create_connection((name, int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise no_cluster(address, error) from error


def no_cluster(address: str, error: Exception) -> UnavailableError:
    """What is told where none answers."""
    return UnavailableError(
        f"no cluster ({address or 'of this machine'}: {first_line(error)}): expected Ray "
        "to answer. Start it with `ray start --head`, and give --on ray:ADDRESS as that "
        "prints it; where that wants a token, set RAY_AUTH_MODE=token here as well"
    )


@contextmanager
def own_signals() -> Iterator[None]:
    """What this process does on a signal stays as it is, whatever a library sets."""
    names = signal.SIGINT, signal.SIGTERM
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
