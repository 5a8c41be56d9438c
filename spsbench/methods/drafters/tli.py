"""A draft model with another tokenizer, by the tokens that both have (TLI).

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, Algorithm 4): the draft's law is
restricted to the tokens that the target has too, and moved to the target's ids. Each token is drawn
from the very law that is handed to the verifier, so that every rule for sampled chains is exact.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.sampling import sample
from spsbench.loop.site import Site, Weights
from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose, Scores
from spsbench.methods.translated import OwnTokens, translator_of
from spsbench.models.translation.translator import Translator
from spsbench.models.translation.vocabulary import Vocabularies


class SharedTokensDrafter(Drafter):
    """Samples from `lm`, as far as its tokens are the target's, under the target's warp.

    Args:
        lm: a session with the draft model, in its own vocabulary.
        translator: between the two vocabularies.
        pairs: target's id -> draft's id of each token that both have, in order.
        vocab_size: of the target.
    """

    drawn = Drawn.IID
    weights = Weights.MODEL
    translates = True

    @classmethod
    def open(cls, site: Site) -> Self:
        """Over a session with the draft model.

        Raises:
            DataError: no token in common.
        """
        both: Vocabularies | None = site.vocabularies
        pairs: Mapping[int, int] = {token: token for token in range(site.vocab_size)}
        if both is not None:
            pairs = both.overlap.pairs
        if not pairs:
            raise DataError(
                "no token of the draft model is one of the target's (tokenizers): expected some in "
                "common. Draft by strings with --drafter slem, or with --drafter ngram"
            )
        return cls(site.session(), translator_of(both), pairs, site.vocab_size)

    def __init__(
        self, lm: LM, translator: Translator, pairs: Mapping[int, int], vocab_size: int
    ) -> None:
        self._text = OwnTokens(lm, translator)
        self._own, self._vocab_size = pairs, vocab_size
        self._tables: tuple[Tensor, Tensor] | None = None  # the pairs, where the logits are
        self._seen = self._fed = 0  # tokens of the text in the last round, drafted ones fed then

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Prefill the draft model with the prompt in its own tokens, unless it does not fit."""
        self._text.begin(prompt)
        self._seen, self._fed = len(prompt), 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Slot i uses DRAFT's uniform i. The first pass also feeds what the loop has added."""
        x = context.tokens
        # A round adds what it accepted and one more: so much is known without a look at it.
        fed = 0 if context.last is None else self._fed  # asked outside a loop: nothing is known
        accepted = x[self._seen : max(self._seen, len(x) - 1)][:fed]
        feed = self._text.align(x, [self._own[token] for token in accepted])
        self._seen, self._fed = len(x), 0
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        if feed is not None and k > 0:
            k = self._text.room(self._text.length, k)
            u = noise.uniform(Purpose.DRAFT, k)
            for i in range(k):
                law = context.warp(self._restricted(self._text.logits(feed)))[0]
                self._fed = i
                if not go_on(law):
                    break
                tokens.append(sample(law, u[i])[None])
                laws.append(law)
                feed = self._in_draft(tokens[-1])
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.cat(tokens), torch.stack(laws))

    def _restricted(self, logits: Tensor) -> Tensor:
        """[1, V of the draft] -> [1, V of the target], with no weight where there is no pair."""
        ours, theirs = self._pairs(logits.device)
        wide = logits.new_full((1, self._vocab_size), -torch.inf)
        wide[:, ours] = logits[:, theirs]
        return wide

    def _in_draft(self, token: Tensor) -> Tensor:
        """[1] the draft's id of a token that both have."""
        ours, theirs = self._pairs(token.device)
        return theirs.index_select(0, torch.searchsorted(ours, token))

    def _pairs(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids of the target in order, and the draft's beside them."""
        if self._tables is None:
            ids = list(self._own), list(self._own.values())
            self._tables = torch.tensor(ids[0], device=device), torch.tensor(ids[1], device=device)
        return self._tables
