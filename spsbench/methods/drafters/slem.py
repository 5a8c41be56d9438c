"""A draft model with another tokenizer, by strings (SLEM).

String-level exact match (Timor et al. 2025, arXiv 2502.05202, Algorithm 2): the draft model writes,
and what it wrote is cut into the target's tokens. Such a draft has no law that could be known, so
it is verified as a draft by rule: it is exact whatever is lost in translation.
"""

from collections.abc import Sequence
from typing import Self

import torch

from spsbench.loop.sampling import sample
from spsbench.loop.site import Site, Weights
from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose, Scores
from spsbench.methods.translated import OwnTokens, translator_of
from spsbench.models.translation.translator import Translator

MOST = 4  # of the draft's own tokens for each of the target's


class StringDrafter(Drafter):
    """What `lm` writes, in the target's tokens.

    Args:
        lm: a session with the draft model, in its own vocabulary.
        translator: between the two vocabularies.
        sampled: draw under the target's warp instead of taking the likeliest tokens. A draft by
            rule is kept with the probability that the target gives it, whoever made it: the
            likeliest is kept more often.
    """

    drawn = Drawn.POINT
    weights = Weights.MODEL
    translates = True

    @classmethod
    def open(cls, site: Site, sampled: bool = False) -> Self:
        """Over a session with the draft model."""
        return cls(site.session(), translator_of(site.vocabularies), sampled)

    def __init__(self, lm: LM, translator: Translator, sampled: bool = False) -> None:
        self._text, self._sampled = OwnTokens(lm, translator), sampled
        self._fed: list[int] = []  # the draft's tokens that were fed in the last round

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Prefill the draft model with the prompt in its own tokens, unless it does not fit."""
        self._text.begin(prompt)
        self._fed = []

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """The draft's own tokens until they are `k` of the target's; drawn ones use DRAFT in order.

        Each batch of tokens is read on the host: it takes a look at the text.
        """
        feed = self._text.align(context.tokens, self._fed)
        self._fed = []
        found: list[int] = []
        own: list[int] = []
        most = self._text.room(self._text.length, MOST * k) if feed is not None else 0
        passes = 0
        while feed is not None and len(found) < k and len(own) < most:
            batch = min(k - len(found), most - len(own))
            u = noise.uniform(Purpose.DRAFT, len(own) + batch) if self._sampled else None
            drawn = []
            for i in range(len(own), len(own) + batch):
                logits = self._text.logits(feed)
                passes += 1
                law = context.warp(logits)[0]
                if not go_on(law):
                    most = 0
                    break
                feed = logits.argmax(-1) if u is None else sample(law, u[i])[None]
                drawn.append(feed)
            new = torch.cat(drawn).tolist() if drawn else []
            own += new
            found = self._text.translator.back(own)
            if any(map(self._text.translator.ends, new)):
                break
        self._fed = own[: max(0, passes - 1)]
        return Draft(torch.tensor(found[:k], dtype=torch.int64), None)
