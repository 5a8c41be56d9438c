"""The reading of target features, common to all heads: each row once, as the text grows.

The head's own predictions replace the target's features only while a round is drafted. When the
target has scored the round, its features replace the predictions for all kept tokens, and the other
rows are dropped; no kept row is computed again.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.replay import NetworkReplay, NetworkRollOut, replay_over
from spsbench.loop.drafter_context import Cache, TargetParts, Together, alone
from spsbench.loop.sampling import Warp, send
from spsbench.loop.types import Context, Scores, Step
from spsbench.methods.drafters.frontier import Frontier

CHUNK = 512  # rows of a long prompt that are read at once


class HiddenReader(Frontier):
    """A frontier over a head: its rows of the text hold features of the target.

    Row j holds the features of token j and, where the head embeds, the embedding of token j + 1.

    Args:
        network: of the head, with its weights; `layers` and `ids` as in `HeadNetwork`.
        target: whose embeddings, and maybe head, it uses.
        cache: empty, for the layers of the head.
        together: makes passes with other texts of a batch.

    Attributes:
        narrow: logits are those of the head's own vocabulary, [n, Vd] in place of [n, V].
    """

    limit = None
    narrow = False
    deepest: int | None = None  # tokens that a draft may be deep; None = any number

    def __init__(
        self, network: Any, target: TargetParts, cache: Cache, together: Together = alone
    ) -> None:
        self.network, self.layers = network, network.layers
        self._target, self._cache, self._together = target, cache, together
        self._dtype = network.dtype
        self._replay: NetworkReplay | None = None
        if together is alone and target.dtype == self._dtype:
            self._replay = replay_over(network, target.embed, target.lm_head)
        self._read = 0  # rows in the cache that hold features of the target
        self._unread: list[tuple[list[Tensor], list[int]]] = []  # features and tokens, kept back
        self._newest: Tensor | None = None  # [H] the features after the last of them
        self._forget()

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._cache.keep(0)
        self._read, self._newest, self._unread = 0, None, []
        self._forget()
        if len(prompt) > 1:
            self._take([prefill.hidden[layer] for layer in self.layers], prompt[1:])

    @torch.inference_mode()
    def settle(self, context: Context) -> None:
        rows = self._kept(context)
        if self._unread:
            every = [*self._unread, *([rows] if rows else [])]
            rows = (
                [torch.cat(parts) for parts in zip(*(states for states, _ in every), strict=True)],
                [token for _, tokens in every for token in tokens],
            )
            self._unread = []
        self._cache.keep(self._read)
        self._forget()
        if rows:
            self._take(*rows)

    @torch.inference_mode()
    def put_off(self, context: Context) -> None:
        """Keep what the last round brought for the next `settle`: a round without a draft.

        Where nothing is drafted for many rounds, no pass is spent on them.
        """
        if rows := self._kept(context):
            states, tokens = rows
            self._unread.append(([state.clone() for state in states], tokens))

    def _kept(self, context: Context) -> tuple[list[Tensor], list[int]] | None:
        """Return the features and tokens of the last round; None: they are read, or there are none.

        Features come as the layers' [m, Ht], with the m tokens after them.
        """
        seen = self._read + sum(len(tokens) for _, tokens in self._unread)
        new = len(context.tokens) - 1 - seen
        if new <= 0 or context.last is None:
            return None
        return kept_rows(context.last, self.layers, new), list(context.tokens[-new:])

    def room(self, context: Context) -> int | None:
        return None

    def depth(self, context: Context, k: int) -> int:
        if len(context.tokens) < 2:
            return 0
        return k if self.deepest is None else min(k, self.deepest)

    @abstractmethod
    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        """Read n times [m, Ht] hidden states and the [m] next tokens; return [H], the newest."""

    def _take(self, hidden: Sequence[Tensor], tokens: Sequence[int]) -> None:
        """Read hidden states of the target [m, Ht], and the m tokens after them."""
        device = self._target.device
        ids = send(torch.tensor(list(tokens), dtype=torch.int64), device)
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            rows, fed = [state[part].to(self._dtype) for state in hidden], ids[part]
            self._newest = self._new_rows(rows, fed)
            self._read += len(fed)

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed [m] tokens to [m, H], by the head's own table where it has one."""
        return self.network.embed(tokens, self._target.embed).to(self._dtype)  # type: ignore[no-any-return]

    def spread(self, rows: Tensor, fill: float) -> Tensor:
        """Spread [n, Vd] rows to [n, V]: `fill` for tokens the head does not know."""
        size, ids = self._target.vocab_size, self.network.ids
        if ids is None and rows.shape[1] == size:
            return rows
        if ids is None:
            ids = torch.arange(rows.shape[1], device=rows.device)
        return rows.new_full((len(rows), size), fill).index_copy_(1, ids, rows)

    def _spread(self, logits: Tensor) -> Tensor:
        """Return [n, V] of [n, Vd'] logits, whose last may be padding; [n, Vd] where `narrow`."""
        logits = logits[:, : self._vocab_width(logits)]
        return logits if self.narrow else self.spread(logits, -torch.inf)

    def _vocab_width(self, logits: Tensor) -> int:
        """Return how many of [n, Vd'] logits are tokens; the rest is padding."""
        ids = self.network.ids
        return min(logits.shape[1], self._target.vocab_size) if ids is None else len(ids)

    def _over_texts(self, name: Hashable, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return `call(*inputs)` [n, ...], computed once over the rows of all texts of a batch.

        A text alone is computed by a program, where there is one.

        Args:
            name: of the call in the network: calls of one name are made together.
        """
        if self._replay is not None:
            return self._replay.run(name, lambda rows, mask, cache: call(*rows), inputs)
        outputs: Tensor = self._together((id(self.network), name), inputs, partial(over_rows, call))
        return outputs

    def _roll_out(
        self,
        name: Hashable,
        first: Tensor,
        width: int,
        u: Tensor,
        warp: Warp,
        tables: Sequence[Tensor] = (),
        cache: Any = None,
    ) -> tuple[Tensor, Tensor] | None:
        """Make n passes of one row, each after a draw by `u` [n] from the one before it.

        Args:
            name: of the pass, as of `NetworkReplay.roll_out`; also `tables` and `cache`.
            first: [1, width + Vd'] the row before: `width` numbers, and logits.

        Returns:
            Tokens [n], and the rows [n, width + Vd'] after each; None: there is no program.
        """
        if self._replay is None:
            return None
        n = len(u)
        rows = first.new_empty(n + 1, first.shape[1])
        rows[:1] = first
        ids, uniforms = torch.empty(n, dtype=torch.int64), u.double().contiguous()
        vocab = self._vocab_width(first[:, width:])
        draws = NetworkRollOut(ids, uniforms, warp, width, vocab, self.network.ids)
        done = self._replay.roll_out(name, rows, tables, cache, draws)
        return (ids, rows[1:]) if done else None

    def _their_head(self, features: Tensor) -> Tensor:
        return self._target.head(features.to(self._target.dtype))


@torch.inference_mode()
def over_rows(call: Callable[..., Tensor], every: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    """Call once over the rows [n, ...] of several texts, and return each text's part."""
    if len(every) == 1:
        return [call(*every[0])]
    sizes = [len(inputs[0]) for inputs in every]
    return torch.split(call(*(torch.cat(parts) for parts in zip(*every, strict=True))), sizes)


def kept_rows(last: Step, layers: Sequence[int], new: int) -> list[Tensor]:
    """Return each layer's rows [new, Ht] of the kept tokens of a round, the pending token first.

    Of a tree they lie along the accepted path.
    """
    hidden = [last.scores.hidden[layer] for layer in layers]
    if last.draft.parents is None:
        return [states[:new] for states in hidden]
    rows = torch.tensor([0, *(node + 1 for node in last.kept)])
    return [states.index_select(0, send(rows, states.device)) for states in hidden]
