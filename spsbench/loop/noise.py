"""Counter-based randomness: every uniform has an address, and no generator has a state.

The address is (seed, cell, sample, repeat) for the generation and (round, purpose, slot) inside it.
The first four are hashed into a Philox key (Salmon et al. 2011), the other three are its counter.
So the same text comes out whatever the order of the work, its sharding or a resume, and nothing
here reads or moves a global generator. Rounds, not positions, key the noise: a position that is
drafted again after a rejection needs fresh numbers, or the joint distribution is wrong.
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
from spsbench.loop.types import Noise, Purpose

WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PhiloxRound:
    """The noise of one round."""

    key: int  # 128 bits
    index: int

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] float64 in [0, 1): number i depends on key, index, purpose and i alone."""
        if n == 0:
            return torch.empty(0, dtype=torch.float64)
        # Words of 64 bits, the least significant first; the first of the counter counts the slots.
        words = (self.key & WORD, self.key >> 64), (0, int(purpose), self.index, 0)
        key, counter = (numpy.array(values, dtype=numpy.uint64) for values in words)
        return torch.from_numpy(_own.random(key, counter, n))


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
        return PhiloxRound(_key(self.seed, self.cell, self.sample, self.repeat), index)


@lru_cache(64, typed=True)
def _key(*address: Any) -> int:
    text = json.dumps(address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


@dataclass(frozen=True, slots=True)
class DeviceRound:
    """The noise of one round, with its numbers on a device."""

    noise: Noise
    device: torch.device

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] float64 in [0, 1) on the device, equal to the host's numbers."""
        return send(self.noise.uniform(purpose, n), self.device)


def on_device(noise: Noise, device: torch.device) -> Noise:
    """Return the same noise with its numbers on `device`."""
    return noise if device.type == "cpu" else DeviceRound(noise, device)
