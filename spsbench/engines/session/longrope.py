"""Models with two sets of rotary factors (longrope: Phi-3 128k, Phi-4-mini), as transformers does.

The set goes by the longest position of a pass, for all of its tokens: short up to the length that
the model was first trained at, long beyond it. A cache made with one set does not go with the
other, so transformers reads the whole text again at the border. Here each set has a session of its
own: the first holds what stands before the border, the second a text that crosses it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.loop.tree import node_positions
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


def open_at_border(open_session: Callable[[], LM], model: PreTrainedModel) -> LM:
    """Return a session with `model` that scores each token with its own set of factors."""
    border = border_of(model)
    return open_session() if border is None else TwoRopes(open_session(), open_session(), border)


class TwoRopes:
    """A session over two: a token is scored as in a text that ends with it."""

    def __init__(self, short: LM, long: LM, border: int) -> None:
        self._short, self._long, self._border = short, long, border
        self.vocab_size, self.limit = short.vocab_size, short.limit
        self._text = torch.empty(0, dtype=torch.int64)  # tree nodes last

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return len(self._text)

    @torch.inference_mode()
    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed as `EagerLM.append` does; return each token's scores by the factors of its position.

        Tokens before the border are fed to the first session. If any is beyond it, the second is
        fed all of the text that it lacks, in one pass.
        """
        m, text = len(tokens), torch.cat([self._text.to(tokens.device), tokens])
        where = (
            torch.arange(len(text)) if parents is None else node_positions(parents, len(text), 0)
        )
        near = where < self._border
        fresh = near[len(text) - m :]
        kept, count = fresh[m - keep :], int(fresh.sum())
        lacked = text[near.to(text.device)][self._short.length :]
        short = self._short.append(lacked, int(kept.sum()), _parents_among(near, parents))
        scores = short._replace(
            hidden={n: states[len(states) - count :] for n, states in short.hidden.items()}
        )
        if count < m:  # in one pass: a chunk of it alone would be read with the short factors
            long = self._long.append(text[self._long.length :], max(keep, 1), parents)
            logits = long.logits[len(long.logits) - keep :].clone()
            hidden = {n: states[len(states) - m :].clone() for n, states in long.hidden.items()}
            logits[kept.to(logits.device)] = short.logits.to(logits)
            for n, states in scores.hidden.items():
                hidden[n][fresh.to(states.device)] = states
            scores = long._replace(logits=logits, hidden=hidden)
        self._text = text
        return scores

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep the first `length` tokens and the nodes `path` after them; ValueError: too few.

        The nodes are fed to the sessions again with the next tokens.
        """
        if not 0 <= length <= len(self._text) - len(path or ()):
            raise ValueError(f"commit of {length} tokens: {len(self._text)} are cached")
        nodes = [length + node for node in path or ()]
        self._text = torch.cat([self._text[:length], self._text[nodes]])
        self._short.commit(min(self._short.length, length, self._border))
        self._long.commit(min(self._long.length, length))


def _parents_among(near: Tensor, parents: Tensor | None) -> Tensor | None:
    """Return the parents of the nodes that are `near`, among themselves; None: there are none."""
    nodes = near[len(near) - (0 if parents is None else len(parents)) :]
    if parents is None or not bool(nodes.any()):
        return None
    above, number = parents[nodes], nodes.long().cumsum(0) - 1  # parents of near nodes are near
    return torch.where(above < 0, above, number[above.clamp(min=0)])
