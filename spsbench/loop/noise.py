"""Counter-based randomness: every uniform has an address, and no generator has a state.

The address is (seed, cell, sample, repeat) for the generation and (round, purpose, slot) inside it.
The first four are hashed into a Philox key (Salmon et al. 2011), the other three are its counter.
So the same text comes out whatever the order of the work, its sharding or a resume, and nothing
here reads or moves a global generator. Rounds, not positions, key the noise: a position that is
drafted again after a rejection needs fresh numbers, or the joint law is wrong.
"""

import hashlib
import json
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
import torch
from torch import Tensor

from spsbench.loop.sampling import send
from spsbench.loop.types import NoiseStream, Purpose

WORD = (1 << 64) - 1


def pack_words(*values: int) -> Any:
    """Return 64-bit words, the least significant first; numpy is slower with integers."""
    return numpy.array(values, dtype=numpy.uint64)


@dataclass(frozen=True, slots=True)
class PhiloxRound:
    """The noise of one round."""

    key: int  # 128 bits
    index: int

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] float64 in [0, 1): slot i is output i of the counter (., purpose, round)."""
        if n == 0:
            return torch.empty(0, dtype=torch.float64)
        counter = pack_words(0, int(purpose), self.index, 0)  # the first counts the slots
        return torch.from_numpy(
            _own.random(pack_words(self.key & WORD, self.key >> 64), counter, n)
        )


class _Philox(threading.local):
    """One generator a thread: to make one takes longer than to set its state."""

    def __init__(self) -> None:
        self._bits = numpy.random.Philox(key=0)
        self._draw = numpy.random.Generator(self._bits).random
        self._fresh: Any = self._bits.state

    def random(self, key: Any, counter: Any, n: int) -> Any:
        """Return [n] float64 in [0, 1) of a fresh generator of this key and counter."""
        self._bits.state = self._fresh | {"state": {"key": key, "counter": counter}}
        return self._draw(n)


_own = _Philox()


@dataclass(frozen=True, slots=True)
class PhiloxStream:
    """The noise of one generation, named by its key."""

    seed: int
    cell: str = ""
    sample: str = ""
    repeat: int = 0

    def round(self, index: int) -> PhiloxRound:
        """The noise of round `index`."""
        return PhiloxRound(_key(self.seed, self.cell, self.sample, self.repeat), index)


@lru_cache(64, typed=True)
def _key(*address: Any) -> int:
    text = json.dumps(address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


def on_device(noise: NoiseStream, device: torch.device) -> NoiseStream:
    """Return the same stream with its numbers on `device`: one copy a round, sent in advance."""
    return noise if device.type == "cpu" else DeviceStream(noise, device)


class DeviceStream:
    """A stream whose uniforms are sent to a device during the round before.

    The requests of earlier rounds predict which uniforms are sent ahead; any other is sent on
    request. The verifier asks for the last uniform of a round when the passes of both models are
    queued: then the host has time to draw the next round's.
    """

    def __init__(self, noise: NoiseStream, device: torch.device) -> None:
        self.noise, self.device = noise, device
        self.most: dict[Purpose, int] = {}  # slots asked for at once, at most
        self._ahead: DeviceRound | None = None

    def round(self, index: int) -> "DeviceRound":
        """The noise of round `index`."""
        ahead, self._ahead = self._ahead, None
        return ahead if ahead and ahead.index == index else DeviceRound(self, index)

    def prepare(self, index: int) -> None:
        """Send the uniforms that round `index` is predicted to use."""
        self._ahead = DeviceRound(self, index)


class DeviceRound:
    """The noise of one round on a device; the predicted uniforms arrive in one block."""

    def __init__(self, stream: DeviceStream, index: int) -> None:
        self.index = index
        self._stream, self._noise = stream, stream.noise.round(index)
        self._sent: dict[Purpose, Tensor] = {}
        self._due = set(stream.most)  # foreseen, and not yet asked for
        if stream.most:
            drawn = [self._noise.uniform(purpose, n) for purpose, n in stream.most.items()]
            block = send(torch.cat(drawn), stream.device)
            parts = block.split_with_sizes(list(stream.most.values()))
            self._sent = dict(zip(stream.most, parts, strict=True))

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] float64 in [0, 1) on the device, equal to the host stream's numbers."""
        if n == 0:
            return torch.empty(0, dtype=torch.float64, device=self._stream.device)
        if n > len(self._sent.get(purpose, ())):
            self._stream.most[purpose] = n
            self._sent[purpose] = send(self._noise.uniform(purpose, n), self._stream.device)
        if self._due:
            self._due.discard(purpose)
            if not self._due:
                self._stream.prepare(self.index + 1)
        return self._sent[purpose][:n]
