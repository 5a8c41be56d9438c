"""Two machines imitated by network namespaces of this one, with a cable between them; as root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CABLE = "cable"  # what both call their end of it
NET = "198.18.231"  # of the block that is set aside for tests of networks (RFC 2544)


def lacking() -> str | None:
    """Why there can be none here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no `ip` here: apt-get install iproute2"
    try:
        with two_namespaces():
            return None
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"


@contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    """The names of two that see each other and nothing else, `address` 1 and 2.

    What runs in them must have ended before they are taken away.
    """
    names = f"sps-{os.getpid()}-1", f"sps-{os.getpid()}-2"
    first, second = names
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", CABLE, "netns", second)
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"{address(number)}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def address(number: int) -> str:
    """Of machine 1 or 2."""
    return f"{NET}.{number}"


def pull(name: str) -> None:
    """The cable, out of one of them."""
    ip("-n", name, "link", "set", CABLE, "down")


def ip(*words: str) -> None:
    """Of iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)
