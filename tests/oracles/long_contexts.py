"""Errors of a session over long contexts, and planted defects that show only there."""

import random
from functools import cache
from unittest.mock import patch

import torch

from spsbench.engines.eager import PREFILL_CHUNK, EagerLM
from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.engines.session.masks import CausalMasks
from spsbench.engines.session.session import FastLM
from tests.oracles.models import laws, tiny

LENGTHS = 301, 511, 513, 700  # of a prompt; chunks are of 512 tokens
VOCAB = 96
WITHIN = 1e-5  # of the greatest logit, in float32
# Many tokens: in a text of one token, nothing can be repeated or lost.
IDS = random.Random(3).choices(range(VOCAB), k=max(LENGTHS) + 20)


def model(architecture, width, dtype=torch.float64):
    """One whose heads are `width` numbers wide."""
    sizes = {"n_embd": 2 * width, "n_head": 2}
    if architecture != "gpt2":
        sizes = {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes |= {"head_dim": width, "intermediate_size": 56}
    if architecture == "mistral":
        sizes |= {"sliding_window": 100}
    return tiny(architecture, VOCAB, 1024, dtype=dtype, scale=1.0, **sizes)


@cache
def rows_without_cache(architecture, width):
    """Logits of the longest text in float64; a row sees those before it alone."""
    return laws(model(architecture, width), IDS)


def greatest_error(lm, architecture, width, length):
    """Of logits after a prompt of `length`: a block, single tokens and, after a rollback, a block.

    Against float64 without a cache, relative to the greatest logit.
    """
    exact, ids = rows_without_cache(architecture, width), torch.tensor(IDS)
    lm.append(ids[:length], keep=0)
    parts = []
    for start, size in (0, 5), (5, 1), (6, 1), (7, 1), (8, 4), (3, 5), (8, 7):
        lm.commit(length + start)
        at = length + start
        found = lm.append(ids[at : at + size], keep=size).logits
        assert lm.length == at + size
        parts.append((found - exact[at : at + size]).abs().max())
    return float(torch.stack(parts).max() / exact.abs().max())


SHAPES = [("llama", 80), ("mistral", 48), ("gpt2", 40), ("llama", 24), ("qwen3", 48)]


def repeats_at_the_border(kind):
    """A prompt's second chunk begins with the last token of the first."""
    own, last = kind._forward, {}

    def planted(self, tokens, keep, parents):
        past, newest = self._length, int(tokens[-1])
        if past and past % PREFILL_CHUNK == 0:
            tokens = torch.cat([torch.tensor([last[self]]), tokens[1:]])
        last[self] = newest
        return own(self, tokens, keep, parents)

    return f"{kind.__module__}.{kind.__name__}._forward", planted


def hides_the_past():
    """The mask of a block hides the first key once there are more than 300."""
    own = CausalMasks.mask

    def planted(self, past, m):
        mask = own(self, past, m)
        if past > 300:
            mask = mask.clone()
            mask[..., 0] = torch.finfo(mask.dtype).min
        return mask

    return "spsbench.engines.session.masks.CausalMasks.mask", planted


def widens_the_window():
    """A block sees a key that has just left its window."""
    own = CausalMasks._make

    def planted(self, width, m):
        mask = own(self, width, m)
        if self._window is not None and width > 100:
            mask[..., 0, width - m - self._window] = 0
        return mask

    return "spsbench.engines.session.masks.CausalMasks._make", planted


def forgets_when_it_grows():
    """A buffer of more than 300 tokens loses the newest when it is made larger."""
    own = PreallocatedLayer._moved

    def planted(self, old, room):
        new = own(self, old, room)
        if self.length > 300:
            new[:, :, self.length - 1] = 0
        return new

    return "spsbench.engines.session.cache.PreallocatedLayer._moved", planted


DEFECTS = {
    "eager repeats a token between chunks": ("eager", lambda: repeats_at_the_border(EagerLM)),
    "fast repeats a token between chunks": ("fast", lambda: repeats_at_the_border(FastLM)),
    "the mask hides a key": ("fast", hides_the_past),
    "a window is too wide": ("fast mistral", widens_the_window),
    "a growing cache forgets": ("fast", forgets_when_it_grows),
}


def seen_error(lm, architecture, planted):
    """The greatest error of a session with a planted defect."""
    errors = []
    with patch(*planted()):
        for length in LENGTHS:
            try:
                errors.append(greatest_error(lm, architecture, 48, length))
            except (RuntimeError, IndexError):
                errors.append(1.0)
            lm.commit(0)
    return max(errors)
