"""Models with two sets of rotary factors (longrope: Phi-3 128k, Phi-4-mini), as transformers does.

The set goes by the longest position of a pass, for all of its tokens: short up to the length that
the model was first trained at, long beyond it. A cache made with one set does not go with the
other, so transformers reads the whole text again at the border; so does this session, and in one
pass, for a chunk of it alone would be read with the short set.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.loop.tree import places
from spsbench.loop.types import LM, Scores


def border_of(model: PreTrainedModel) -> int | None:
    """Return the tokens up to which `model` uses its short factors; None: a single set."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]
    borders = [
        int(kind["original_max_position_embeddings"])
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min(borders, default=None)


def bordered(lm: LM, model: PreTrainedModel) -> LM:
    """Return a session that scores each token with its own set of factors.

    `lm` is a session with `model`.
    """
    border = border_of(model)
    return lm if border is None else TwoRopes(lm, border)


class TwoRopes:
    """A session over a session: a token is scored as in a text that ends with it."""

    def __init__(self, lm: LM, border: int) -> None:
        self._lm, self._border = lm, border
        self.vocab_size, self.limit = lm.vocab_size, lm.limit
        self._text = torch.empty(0, dtype=torch.int64)  # what is cached, tree nodes last
        self._long = False  # the set with which it was read

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return self._lm.length

    @torch.inference_mode()
    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed as `EagerLM.append` does; a pass that crosses the border runs as two."""
        m = len(tokens)
        where = torch.arange(self.length, self.length + m)
        if parents is not None:
            where = places(parents, m, self.length)
        near = where < self._border
        before = 0 if parents is None else len(parents) - m  # nodes fed in passes before this one
        if before > 0 and bool((near == self._long).any()):
            whole = torch.cat([self._text[-before:].to(tokens.device), tokens])
            self.commit(self.length - before)
            scores = self.append(whole, keep, parents)
            hidden = {layer: states[before:] for layer, states in scores.hidden.items()}
            return scores._replace(hidden=hidden)
        if bool(near.all()):
            scores = self._short(tokens, keep, parents)
        elif bool(near[m - keep :].any()):
            scores = self._both(tokens, keep, parents, near)
        else:
            scores = self._far(tokens, keep, parents)
        self._text = torch.cat([self._text.to(tokens.device), tokens])
        return scores

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Commit as `EagerLM.commit` does."""
        self._lm.commit(length, path)
        nodes = [length + node for node in path or ()]
        self._text = torch.cat([self._text[:length], *(self._text[n : n + 1] for n in nodes)])
        self._long &= len(self._text) > 0

    def _short(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Scores:
        if self._long:
            self._lm.commit(0)
            self._lm.append(self._text, keep=0)
            self._long = False
        return self._lm.append(tokens, keep, parents)

    def _far(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Scores:
        """Score by the long factors; the first call feeds the whole text anew, in one pass."""
        if self._long:
            return self._lm.append(tokens, keep, parents)
        self._lm.commit(0)
        text = torch.cat([self._text.to(tokens.device), tokens])
        scores = self._lm.append(text, max(keep, 1), parents)
        self._long = True
        hidden = {layer: states[len(self._text) :] for layer, states in scores.hidden.items()}
        return scores._replace(logits=scores.logits[len(scores.logits) - keep :], hidden=hidden)

    def _both(self, tokens: Tensor, keep: int, parents: Tensor | None, near: Tensor) -> Scores:
        """Score tokens before the border by the short factors, the others by the long ones."""
        m, n, had = len(tokens), 0 if parents is None else len(parents), self.length
        above = None
        if parents is not None and bool(near[m - n :].any()):
            number = near[m - n :].long().cumsum(0) - 1  # parents of near nodes are near
            above = parents[near[m - n :]]
            above = torch.where(above < 0, above, number[above.clamp(min=0)])
        kept = near[m - keep :]
        short = self._short(tokens[near.to(tokens.device)], int(kept.sum()), above)
        self._lm.commit(had)
        far = self._far(tokens, keep, parents)
        logits = far.logits.clone()
        logits[kept.to(logits.device)] = short.logits
        hidden = {layer: states.clone() for layer, states in far.hidden.items()}
        for layer, states in hidden.items():
            states[near.to(states.device)] = short.hidden[layer]
        return far._replace(logits=logits, hidden=hidden)
