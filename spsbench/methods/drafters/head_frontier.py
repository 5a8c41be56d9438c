"""The frontiers of heads: target features in, a cache of their own, logits out.

Each row of target features is read once, as the text grows. The head's own predictions replace the
target's features only while a round is drafted. When the target has scored the round, its features
replace the predictions for all kept tokens, and the other rows are dropped; no kept row is computed
again. Here stand what all heads share and the recurrent ones; `parallel_frontier` has the others.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.replay import NetworkPass, NetworkReplay, RollOut, replay_over
from spsbench.engines.session.masks import CausalMasks, Windows
from spsbench.heads.eagle3 import Eagle3Network
from spsbench.heads.layers import RowPositions
from spsbench.heads.network import HeadNetwork
from spsbench.loop.drafter_context import Cache, TargetParts, Together, alone
from spsbench.loop.sampling import Warp, send
from spsbench.loop.tree import tree_of
from spsbench.loop.types import Context, Scores
from spsbench.methods.drafters.frontier import Frontier

CHUNK = 512  # rows of a long prompt that are read at once
MAX_SHARED_ROWS = 128  # rows of a pass that texts of a batch share


class HiddenReader(Frontier):
    """A frontier over a head: its rows of the text hold features of the target.

    Row j holds the features of token j and, where the head embeds, the embedding of token j + 1.
    `network` is that of the head, with its weights, `layers` and `ids` as in `HeadNetwork`; it uses
    the embeddings, and maybe the head, of `target`. `cache` is empty, for the layers of the head;
    `together` makes passes with other texts of a batch.
    """

    limit = None  # rotary positions have no end
    deepest: int | None = None  # tokens that a draft may be deep; None = any number

    def __init__(
        self, network: Any, target: TargetParts, cache: Cache, together: Together = alone
    ) -> None:
        self.network, self.layers, self.known_ids = network, network.layers, network.ids
        self._target, self._cache, self._together = target, cache, together
        self._dtype = network.dtype
        self._replay: NetworkReplay | None = None
        if together is alone and target.dtype == self._dtype:
            self._replay = replay_over(network, target.embed, target.lm_head)
        self._read = 0  # rows in the cache that hold features of the target
        self._unread: list[tuple[list[Tensor], list[int]]] = []  # features and tokens, kept back
        self._newest: Any = None  # [H] the features after the last of them
        self._forget()

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._keep(0)
        self._read, self._newest, self._unread = 0, None, []
        self._forget()
        if len(prompt) > 1:
            self._take([prefill.hidden[layer] for layer in self.layers], prompt[1:])

    def settle(self, context: Context) -> None:
        """Drop the last draft's rows; read the features of the last round's and deferred tokens.

        Call it or `defer` after each round: one passed over cannot be read later. The prompt's are
        read by `begin`.
        """
        if rows := self._kept(context):
            self._unread.append(rows)
        self._keep(self._read)
        self._forget()
        if self._unread:
            states, tokens = zip(*self._unread, strict=True)
            self._unread = []
            layers = zip(*states, strict=True)
            self._take(
                [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in layers],
                [token for part in tokens for token in part],
            )

    def _keep(self, length: int) -> None:
        """Keep the first rows of the cache, as many as hold features of the target."""
        self._cache.keep(length)

    def defer(self, context: Context) -> None:
        # Kept for the next `settle`: where nothing is drafted for long, no pass is spent.
        if rows := self._kept(context):
            states, tokens = rows
            self._unread.append(([state.clone() for state in states], tokens))

    def _kept(self, context: Context) -> tuple[list[Tensor], list[int]] | None:
        """Return the last round's features, [m, Ht] by layer, and the m tokens after them.

        None: they have been read, or there are none.
        """
        seen = self._read + sum(len(tokens) for _, tokens in self._unread)
        new = len(context.tokens) - 1 - seen
        if new <= 0 or context.last is None:
            return None
        hidden = [context.last.scores.hidden[layer] for layer in self.layers]
        if context.last.draft.parents is None:
            hidden = [states[:new] for states in hidden]
        else:  # a tree's lie along the accepted path
            path = torch.tensor([0, *(node + 1 for node in context.last.kept)])
            hidden = [states.index_select(0, send(path, states.device)) for states in hidden]
        return hidden, list(context.tokens[-new:])

    def depth(self, context: Context, k: int) -> int:
        if len(context.tokens) < 2:
            return 0
        return k if self.deepest is None else min(k, self.deepest)

    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        self._depths.update(dict.fromkeys(nodes, self._depths[parents[0]] + 1))
        return super().feed(tokens, nodes, parents)

    def roll_out(
        self, logits: Tensor, u: Tensor, warp: Warp, first: int
    ) -> tuple[Tensor | None, Tensor] | None:
        if first or self._by_path is not None:
            return None
        self._depths.update((node, node + 1) for node in range(len(u)))
        return self._rolled(u, warp)

    def _forget(self) -> None:
        super()._forget()
        self._depths = {-1: 0}  # node -> its depth, -1 = the text
        self._states: dict[int, Tensor] = {}  # node -> what is known after it

    def _after(self, nodes: Sequence[int]) -> Tensor:
        """Stack the states after some nodes."""
        return torch.stack([self._states[node] for node in nodes])

    def _rolled(self, u: Tensor, warp: Warp) -> tuple[Tensor | None, Tensor] | None:
        """Draw and feed n nodes after the text, as `roll_out`; None, as here: it cannot."""
        return None

    @abstractmethod
    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        """Read n times [m, Ht] hidden states and the [m] next tokens; return [H], the newest."""

    def _take(self, hidden: Sequence[Tensor], tokens: Sequence[int]) -> None:
        """Read [m, Ht] states by layer and the m tokens after them, in chunks; set `_newest`."""
        ids = send(torch.tensor(list(tokens), dtype=torch.int64), self._target.device)
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            rows, fed = [state[part].to(self._dtype) for state in hidden], ids[part]
            self._newest = self._new_rows(rows, fed)
            self._read += len(fed)

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed [m] tokens to [m, H], by the head's own table where it has one."""
        return self.network.embed(tokens, self._target.embed).to(self._dtype)  # type: ignore[no-any-return]

    def spread(self, rows: Tensor, fill: float) -> Tensor:
        size, ids = self._target.vocab_size, self.known_ids
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
        ids = self.known_ids
        return min(logits.shape[1], self._target.vocab_size) if ids is None else len(ids)

    def _over_texts(self, name: Hashable, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return `call(*inputs)` [n, ...], computed once over the rows of all texts of a batch.

        Calls of one `name` in the network are made together. A text alone is computed by a program,
        where there is one.
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

        `name`, `tables` and `cache` are the pass's, as of `NetworkReplay.roll_out`; `first` [1,
        width + Vd'] is the row before: `width` numbers, and logits. Returns the target's ids of the
        tokens [n], and the rows [n, width + Vd'] after each; None: there is no program for them.
        """
        if self._replay is None:
            return None
        n = len(u)
        rows = first.new_empty(n + 1, first.shape[1])
        rows[:1] = first
        ids, uniforms = torch.empty(n, dtype=torch.int64), u.double().contiguous()
        vocab = self._vocab_width(first[:, width:])
        rolled = RollOut(ids, uniforms, warp, width, vocab, self.network.ids)
        done = self._replay.roll_out(name, rows, tables, cache, rolled)
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


class HeadFrontier(HiddenReader):
    """The cache of a head while a draft grows in it; a chain is a tree of one child a node.

    A row holds the features of a token and the embedding of the next one: that of a node, the
    features after its parent and its own token.
    """

    network: HeadNetwork

    def __init__(self, network: Any, target: TargetParts, *parts: Any) -> None:
        super().__init__(network, target, *parts)
        self._window: int | None = getattr(network.shape, "window", None)
        self._masks = CausalMasks(self._dtype, target.device, self._window)
        self._branched = CausalMasks(self._dtype, target.device)

    def _root(self, context: Context) -> Tensor:
        self._states[-1] = self._newest  # [H] features after a node
        self._after_text = self._scores(self._after([-1]))
        return self._spread(self._after_text)

    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Feed nodes in one pass of the head; keep features, return [n, V] logits after each."""
        features, n, past = self._after(parents), len(nodes), len(self._parents)
        self._add(nodes, parents)
        if n == 1 and self._parents == list(range(-1, past)):
            places, sees = self._chain(1, past)
        else:
            above = torch.tensor(self._parents)
            positions = send(self._read + tree_of(above).ancestors[-n:], self._target.device)
            places = self.network.rotary(positions, self._dtype)
            sees = self._branched.branched(self._read + past, n, above)
            if self._window is not None:
                windows = Windows(self._window, {}, mapped=False)
                sees = windows.hide(sees, above, n, self._read + past)
        inputs = send(tokens, self._target.device), *places, features
        outputs = self._run("feed", self._fed, inputs, sees)[0]
        return self._noted(nodes, outputs)

    def _rolled(self, u: Tensor, warp: Warp) -> tuple[Tensor, Tensor] | None:
        """Draw n tokens by `u` [n] in one program; return them and the [n, V] logits after each.

        None, with nothing drawn: no program, or text and draft exceed the head's attention window.
        """
        features, n = self._after([-1]), len(u)
        if self._window is not None and self._read + n > self._window:
            return None  # a program of one row has no mask
        first, width = torch.cat([features, self._after_text], 1), features.shape[1]
        places = self.network.rotary.rows(self._read, n, self._dtype)
        rolled = self._roll_out("feed", first, width, u, warp, places, self._cache)
        if rolled is None:
            return None
        self._add(range(n), range(-1, n - 1))
        return rolled[0], self._noted(range(n), rolled[1])

    def drop_newest(self, count: int) -> None:
        del self._parents[len(self._parents) - count :]
        self._cache.keep(self._read + len(self._parents))

    def _noted(self, nodes: Sequence[int], outputs: Tensor) -> Tensor:
        """Note [n, H + Vd] features and logits after some nodes; return logits spread to [n, V].

        Both are in one dtype: the wider, where the target's is another than the head's.
        """
        width = len(self._states[-1])
        features = outputs[:, :width].to(self._states[-1].dtype)
        self._states.update(zip(nodes, features, strict=True))
        return self._spread(outputs[:, width:])

    def _chain(self, m: int, past: int = 0) -> tuple[RowPositions, Tensor | None]:
        """Return places of m rows, `past` after the text's, and their mask; None: not needed."""
        start = self._read + past
        return (
            self.network.rotary.rows(start, m, self._dtype),
            None if m == 1 and start < (self._window or start + 1) else self._masks.mask(start, m),
        )

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        at, sees = self._chain(len(tokens))
        inputs = tokens, *at, *hidden
        return self._run("read", self._fused, inputs, sees)[0, -1]

    def _run(self, name: str, plain: NetworkPass, inputs: Sequence[Tensor], sees: Any) -> Tensor:
        """Return `plain(inputs, sees, cache)`, by a program where there is one."""
        if self._replay is None:
            return plain(inputs, sees, self._cache)
        return self._replay.run(name, plain, inputs, sees, self._cache)

    def _fused(self, inputs: Sequence[Tensor], sees: Any, cache: Any) -> Tensor:
        tokens, positions, cos, sin, *hidden = inputs
        features = self.network.fuse(hidden)
        return self._pass(features, tokens, RowPositions(positions, cos, sin), sees, cache)[None]

    def _fed(self, inputs: Sequence[Tensor], sees: Any, cache: Any) -> Tensor:
        tokens, positions, cos, sin, features = inputs
        outputs = self._pass(features, tokens, RowPositions(positions, cos, sin), sees, cache)
        return torch.cat([outputs, self._scores(outputs)], -1)[None]

    def _pass(
        self, features: Tensor, tokens: Tensor, places: RowPositions, sees: Any, cache: Any
    ) -> Tensor:
        """Return [m, H] outputs for features [m, H] and the tokens [m] after them.

        Their rows go to `cache` at `places`, under the mask `sees` (None: none is needed).
        Texts of a batch share the pass, unless the rows are many: those of a prompt.
        """
        inputs = features, self._embed(tokens), places, cache, sees
        together = alone if len(features) > MAX_SHARED_ROWS else self._together
        outputs: Tensor = together((id(self.network), "step"), inputs, self.network.steps)
        return outputs

    def _scores(self, features: Tensor) -> Tensor:
        """Map [n, H] features to [n, Vd] logits."""
        return self._over_texts(
            "scores", lambda rows: self.network.scores(rows, self._their_head), features
        )


class SlotFrontier(HeadFrontier):
    """A frontier that computes the logits of all depths in one pass, on the second request."""

    network: Eagle3Network

    def __init__(self, network: Eagle3Network, *parts: Any) -> None:
        super().__init__(network, *parts)
        shape, count = network.shape, len(network.layers)
        self._token, self._rows_ahead = shape.mask_token, shape.at_once - 1
        with torch.inference_mode():
            self._mask = network.fuse(network.mask_hidden[0].chunk(count, -1))  # [1, H]

    def _forget(self) -> None:
        super()._forget()
        self._ahead: Tensor | None = None

    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return [n, V] logits after `nodes` of one depth, predicted once: the same row for all."""
        at = self._depths[parents[0]]
        if self._ahead is None or at >= len(self._ahead):
            self._ahead = self._predicted(max(self._rows_ahead, at + 1))
        return self._ahead[at].expand(len(nodes), -1)

    def _rolled(self, u: Tensor, warp: Warp) -> None:
        """Return None: nothing that is drawn is fed."""

    def _predicted(self, m: int) -> Tensor:
        """Return [m, V] logits of slots 1 to m, by a pass over mask tokens after the text alone."""
        device, start = self._target.device, self._read
        self._cache.keep(start)
        masks = torch.full((m,), int(self._token or 0), dtype=torch.int64, device=device)
        outputs = self._pass(self._mask.expand(m, -1), masks, *self._chain(m), self._cache)
        return self._spread(self._scores(outputs))
