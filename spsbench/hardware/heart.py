"""Signs of life between ranks: one that stands still, or is out of reach, is lost after a while.

Rank 0 and each other rank send each other a beat twice a second, from threads of their own, so
that a slow pass or a pause is no silence. Only time in which this process itself was awake counts
as silence of another: a command that is stopped as a whole, and goes on, has lost nobody.
"""

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

BEAT = 0.5  # seconds between two beats
USUAL = 30.0  # seconds of silence after which a rank is lost
HELLO = struct.Struct("!16sI")  # what only a rank of this team knows, and its number
CLOSING = 5.0  # seconds for a farewell to be read
FRAME = struct.Struct("!I")  # how long rank 0 is patient, in ms; 0: it ends in order

_patience = USUAL


def be_patient(seconds: float) -> None:
    """From now on: silence of so many seconds is a loss. Rank 0 tells the others."""
    global _patience
    _patience = seconds


class Heart:
    """Beats, and listens to the hearts of others, until it is stopped.

    Args:
        peers: connected sockets, by rank; they are closed at the end.
        leads: whether this is rank 0, whose patience counts.
        lost: told once, from the heart's own thread: which rank, and after how many seconds of
            silence; None: its connection closed.
    """

    def __init__(
        self,
        peers: Mapping[int, socket.socket],
        leads: bool,
        lost: Callable[[int, float | None], None],
    ) -> None:
        self._peers, self._leads, self._lost = dict(peers), leads, lost
        self._heard = dict.fromkeys(peers, b"")
        self._silence = dict.fromkeys(peers, 0.0)
        self._patience = _patience
        self._over, self._gone, self._before = threading.Event(), False, time.monotonic()
        for peer in self._peers.values():
            peer.setblocking(False)
        self._thread = threading.Thread(target=self._live, name="heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End in order: the others hear that this was meant."""
        self._rest()
        for peer in self._peers.values():
            _send(peer, FRAME.pack(0))
            _close(peer)
        self._peers.clear()

    def part(self) -> None:
        """Rank 0, when it has told the others to end: until each has said farewell, or is lost."""
        self._rest()
        while self._peers and not self._gone:
            time.sleep(BEAT / 20)
            self._beat()

    def _rest(self) -> None:
        self._over.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._gone and not self._over.wait(BEAT):
            self._beat()

    def _beat(self) -> None:
        now = time.monotonic()
        passed, self._before = min(now - self._before, 2 * BEAT), now
        if self._leads:
            self._patience = _patience
        self._gone = any(self._is_lost(rank, passed) for rank in list(self._peers))

    def _is_lost(self, rank: int, passed: float) -> bool:
        """Beat for `rank` and listen to it; `passed` seconds have gone by."""
        peer = self._peers[rank]
        _send(peer, FRAME.pack(max(1, round(1e3 * self._patience))))
        came = _read(peer)
        heard = self._heard[rank] + (came or b"")
        whole = len(heard) // FRAME.size * FRAME.size
        told = [each for (each,) in FRAME.iter_unpack(heard[:whole])]
        self._heard[rank] = heard[whole:]
        if 0 in told:
            self._peers.pop(rank).close()
            return False
        if told and not self._leads:
            self._patience = told[-1] / 1e3
        self._silence[rank] = 0.0 if came else self._silence[rank] + passed
        if came is None:
            self._lost(rank, None)
        elif self._silence[rank] > self._patience:
            self._lost(rank, self._patience)
        else:
            return False
        return True


def listen() -> tuple[socket.socket, str, int, bytes]:
    """Rank 0: a socket for the others, the address it was made on, its port, and the secret."""
    if socket.has_dualstack_ipv6():
        made = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        made = socket.create_server(("", 0))
    return made, _seen_from_outside(), made.getsockname()[1], secrets.token_bytes(16)


def take(made: socket.socket, secret: bytes, others: int, until: float) -> dict[int, socket.socket]:
    """Rank 0: the connections of `others` ranks; whoever does not know the secret is sent away.

    Raises:
        TimeoutError: they did not all come before `until`, a time of `time.monotonic`.
    """
    found: dict[int, socket.socket] = {}
    with made:
        while len(found) < others:
            made.settimeout(max(until - time.monotonic(), 0.01))
            peer, _ = made.accept()
            peer.settimeout(5)
            try:
                known, rank = HELLO.unpack(peer.recv(HELLO.size, socket.MSG_WAITALL))
            except (OSError, struct.error):
                known, rank = b"", 0
            if not secrets.compare_digest(known, secret):
                peer.close()
                continue
            found[rank] = peer
    return found


def call(address: str, port: int, secret: bytes, rank: int) -> socket.socket:
    """Another rank: its connection to rank 0.

    Raises:
        OSError: there is nobody.
    """
    made = socket.create_connection((address or os.environ["MASTER_ADDR"], port), timeout=60)
    made.sendall(HELLO.pack(secret, rank))
    return made


def _seen_from_outside() -> str:
    """This machine as the one where the ranks meet sees it; empty: it is that one."""
    asked = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family, kind, _, _, place = socket.getaddrinfo(*asked, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)  # sends nothing
        own = str(probe.getsockname()[0])
    return "" if own == place[0] or own.startswith("127.") or own == "::1" else own


def _send(peer: socket.socket, what: bytes) -> None:
    """As far as there is room: a rank that does not read is found by its silence."""
    try:
        peer.send(what)
    except OSError:
        return


def _close(peer: socket.socket) -> None:
    """After what was sent has been read: closing over unread beats would take it back."""
    with suppress(OSError):
        peer.settimeout(CLOSING)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(4096):
            pass
    peer.close()


def _read(peer: socket.socket) -> bytes | None:
    """What has come; None: the connection is closed."""
    found = b""
    while True:
        try:
            more = peer.recv(4096)
        except BlockingIOError:
            return found
        except OSError:
            return None
        if not more:
            return found or None
        found += more
