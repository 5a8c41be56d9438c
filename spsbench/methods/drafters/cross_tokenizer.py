"""Draft models with another tokenizer: by shared tokens (TLI), or by strings (SLEM)."""

import sys
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.drafter_context import DrafterContext, Weights
from spsbench.loop.sampling import sample
from spsbench.loop.text import common_prefix
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Noise,
    Purpose,
    Scores,
    continues,
)
from spsbench.models.translation.translator import ByText, Translator
from spsbench.models.translation.vocabulary import Vocabularies

MAX_DRAFT_TOKENS_PER_TOKEN = 4  # the draft's own tokens for each of the target's


class SharedTokensDrafter(Drafter):
    """A drafter that samples from `lm` restricted to shared tokens, under the target's warp.

    Args:
        lm: a session with the draft model, in its own vocabulary.
        translator: between the two vocabularies.
        pairs: target's id -> draft's id of each token that both have, in order.
        vocab_size: tokens that the target has.
    """

    drawn = Drawn.IID
    weights = Weights.MODEL
    translates = True

    @classmethod
    def open(cls, context: DrafterContext) -> Self:
        """Open the drafter over a session with the draft model; DataError: no token is shared."""
        both: Vocabularies | None = context.vocabularies
        pairs: Mapping[int, int] = {token: token for token in range(context.vocab_size)}
        if both is not None:
            pairs = both.overlap.pairs
        if not pairs:
            raise DataError(
                "no token of the draft model is one of the target's (tokenizers): expected some in "
                "common. Draft by strings with `drafter` slem, or with `drafter` ngram"
            )
        return cls(context.session(), translator_of(both), pairs, context.vocab_size)

    def __init__(
        self, lm: LM, translator: Translator, pairs: Mapping[int, int], vocab_size: int
    ) -> None:
        self._text = OwnTokens(lm, translator)
        self._own, self._vocab_size = pairs, vocab_size
        self._pairs = torch.tensor([[*pairs], [*pairs.values()]])  # [2, n] ids of both
        self._seen = self._fed = 0  # tokens of the text in the last round, drafted ones fed then

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Forget the last text, and feed the new prompt in the draft model's tokens."""
        self._text.begin(prompt)
        self._seen, self._fed = len(prompt), 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draw up to `k` shared tokens with their [N, V] probs; slot i uses DRAFT's uniform i.

        Ends where `go_on` refuses a slot or the draft's context is full; none where the text cannot
        be written in its tokens. The first pass also feeds the loop's new tokens.
        """
        x = context.tokens
        # A round adds what it accepted and one more: so much is known without a look at it.
        fed = 0 if context.last is None else self._fed  # asked outside a loop: nothing is known
        accepted = x[self._seen : max(self._seen, len(x) - 1)][:fed]
        feed = self._text.align(x, [self._own[token] for token in accepted])
        self._seen, self._fed = len(x), 0
        tokens: list[Tensor] = []
        draft_probs: list[Tensor] = []
        if feed is not None and k > 0:
            k = self._text.room(k)
            u = noise.uniform(Purpose.DRAFT, k)
            for i in range(k):
                logits = self._restricted(self._text.logits(feed))
                if context.processors is not None:
                    path = tuple(torch.cat(tokens).tolist()) if tokens else ()
                    logits = context.processors.rows(logits, x, [path])
                probs = context.warp(logits)[0]
                self._fed = i
                if not continues(go_on, context.warp, logits[0], probs):
                    break
                tokens.append(sample(probs, u[i])[None])
                draft_probs.append(probs)
                feed = self._in_draft(tokens[-1])
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.cat(tokens), torch.stack(draft_probs))

    def _restricted(self, logits: Tensor) -> Tensor:
        """Map [1, V of the draft] logits to [1, V of the target]; unshared tokens get -inf."""
        ours, theirs = self._pairs.to(logits.device)
        wide = logits.new_full((1, self._vocab_size), -torch.inf)
        wide[:, ours] = logits[:, theirs]
        return wide

    def _in_draft(self, token: Tensor) -> Tensor:
        """Return the [1] draft id of a shared token."""
        ours, theirs = self._pairs.to(token.device)
        draft_id: Tensor = theirs.index_select(0, torch.searchsorted(ours, token))
        return draft_id


class StringDrafter(Drafter):
    """A drafter that retokenizes the text of `lm` for the target.

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
    def open(cls, context: DrafterContext, sampled: bool = False) -> Self:
        return cls(context.session(), translator_of(context.vocabularies), sampled)

    def __init__(self, lm: LM, translator: Translator, sampled: bool = False) -> None:
        self._text, self._sampled = OwnTokens(lm, translator), sampled
        self._fed, self.text_alone = list[int](), not sampled  # fed: draft's tokens, last round

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._text.begin(prompt)
        self._fed = []

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft up to `k` tokens of the target's, without probs; sampled ones use DRAFT in order.

        Ends earlier where `go_on` refuses one of the draft's own tokens, at an end of text, at a
        limit of them, or where the text cannot be written in them. Each batch of tokens is read on
        the host, because translation needs the text.
        """
        feed = self._text.align(context.tokens, self._fed)
        self._fed = []
        target_ids: list[int] = []
        draft_ids: list[int] = []
        most = 0 if feed is None else self._text.room(MAX_DRAFT_TOKENS_PER_TOKEN * k)
        passes = 0
        while feed is not None and len(target_ids) < k and len(draft_ids) < most:
            batch = min(k - len(target_ids), most - len(draft_ids))
            u = noise.uniform(Purpose.DRAFT, len(draft_ids) + batch) if self._sampled else None
            drawn = []
            for i in range(len(draft_ids), len(draft_ids) + batch):
                logits = self._text.logits(feed)
                passes += 1
                probs = context.warp(logits)[0]
                if not continues(go_on, context.warp, logits[0], probs):
                    most = 0
                    break
                feed = logits.argmax(-1) if u is None else sample(probs, u[i])[None]
                drawn.append(feed)
            new = torch.cat(drawn).tolist() if drawn else []
            draft_ids += new
            target_ids = self._text.translator.back(draft_ids)
            if any(map(self._text.translator.ends, new)):
                break
        self._fed = draft_ids[: max(0, passes - 1)]
        return Draft(torch.tensor(target_ids[:k], dtype=torch.int64), None)


def translator_of(both: Vocabularies | None) -> Translator:
    """Return the translator between two vocabularies; the identity where there is one."""
    return Translator() if both is None else ByText(both.target, both.draft)


class OwnTokens:
    """A session whose cache follows the text in the draft model's tokens.

    The cached tokens are compared with the text's, and fed from the first difference: tokenization
    near the end of a text changes when text is added, never far before it.
    """

    def __init__(self, lm: LM, translator: Translator) -> None:
        self.lm, self.translator = lm, translator
        self._limit = sys.maxsize if lm.limit is None else lm.limit
        self._cached: list[int] = []
        self._pending: list[int] = []  # tokens of the text that are not fed yet

    def begin(self, prompt: Sequence[int]) -> None:
        """Empty the cache and feed the prompt but its last token, if it can be written and fits."""
        self.translator.restart()
        self.lm.commit(0)
        self._cached, self._pending = [], []
        ids = self.translator.follow(prompt)
        if ids and len(ids) <= self._limit:
            self.lm.append(torch.tensor(ids[:-1], dtype=torch.int64), keep=0)
            self._cached = ids[:-1]

    def align(self, tokens: Sequence[int], drafted: Sequence[int]) -> Tensor | None:
        """Roll the cache back to the text and return [m], the tokens to feed next, at least one.

        None where the text cannot be written, or exceeds the draft model's context. `tokens` is
        the whole text, in the target's ids; `drafted` are the draft's, fed after the last `align`.
        """
        self._cached += drafted
        self._pending = []
        ids = self.translator.follow(tokens)
        if not ids or len(ids) > self._limit:
            return None
        kept = min(common_prefix(self._cached, ids), len(ids) - 1)
        self.lm.commit(kept)
        self._cached, self._pending = ids[:kept], ids[kept:]
        return torch.tensor(ids[kept:], dtype=torch.int64)

    def logits(self, feed: Tensor) -> Tensor:
        """Feed the tokens from `align`, or drafted ones; return the [1, V] logits after them."""
        logits = self.lm.append(feed, keep=1).logits
        self._cached += self._pending
        self._pending = []
        return logits

    def room(self, k: int) -> int:
        """Return how many of `k` tokens fit after the aligned text; the last is never fed."""
        return min(k, self._limit - len(self._cached) - len(self._pending) + 1)
