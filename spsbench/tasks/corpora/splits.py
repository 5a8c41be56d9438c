"""Which generated things may be trained on: a hash of what they say decides, not their wording."""

import hashlib
from typing import Literal

Split = Literal["train", "heldout"]

HELDOUT_SHARE = 0.1  # of the possible keys


def split_of(key: str) -> Split:
    """The split of a key, by its hash: no key can be in both."""
    share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32
    return "heldout" if share < HELDOUT_SHARE else "train"
