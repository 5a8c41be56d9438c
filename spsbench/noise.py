"""Counter-based randomness: every uniform has an address, and no generator has a state.

The address is (seed, cell, sample, repeat) for the generation and (round, purpose, slot) inside it.
The first four are hashed into a Philox key (Salmon et al. 2011), the other three are its counter.
So the same text comes out whatever the order of the work, its sharding or a resume, and nothing
here reads or moves a global generator. Rounds, not positions, key the noise: a position that is
drafted again after a rejection needs fresh numbers, or the joint law is wrong.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from spsbench.types import Purpose


@dataclass(frozen=True, slots=True)
class PhiloxRound:
    """The noise of one round."""

    key: int  # 128 bits
    index: int

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] float64 in [0, 1): slot i is the i-th output of the counter (., purpose, round)."""
        counter = (self.index << 128) | (int(purpose) << 64)  # the low word counts the slots
        bits = numpy.random.Philox(key=self.key, counter=counter)
        return torch.from_numpy(numpy.random.Generator(bits).random(n))


@dataclass(frozen=True, slots=True)
class PhiloxStream:
    """The noise of one generation, named by its key."""

    seed: int
    cell: str = ""
    sample: str = ""
    repeat: int = 0

    def round(self, index: int) -> PhiloxRound:
        """The noise of round `index`."""
        return PhiloxRound(self._key(), index)

    def _key(self) -> int:
        address = json.dumps([self.seed, self.cell, self.sample, self.repeat])
        return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=16).digest(), "big")
