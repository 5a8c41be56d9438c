"""The interface between the network of a head and the drafter that runs it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.errors import DataError
from spsbench.heads.blocks import TargetLayer
from spsbench.heads.layers import Rotary, RowPositions, TextCaches
from spsbench.loop.drafter_context import Cache, TargetParts

Rows = Callable[[Tensor], Tensor]


class HeadModule(nn.Module):
    """The base of networks that rank tokens: all of the target's, or a reduced vocabulary.

    `shape` is that of the head, as its files describe it; `layers` the number of the target's
    layers, the last of whose hidden states is the normed one.

    Attributes:
        layers: hidden states of the target that it reads, as transformers numbers them.
        ids: [Vd] int64, the target's token that each row of its own vocabulary is; None: the same.
        dtype: dtype of its numbers, whatever an engine packs them in.
    """

    ids: Tensor | None = None
    dtype: torch.dtype
    embed_tokens: nn.Embedding  # as `lm_head`, only where the head brings one
    lm_head: nn.Linear
    maps: tuple[str, ...] = ("d2t", "t2d")  # maps of a reduced vocabulary; the first is needed
    copies: tuple[tuple[str, str], ...] = ()  # patterns of tied tensors -> what they are copies of

    def __init__(self, shape: Any, layers: int) -> None:
        super().__init__()
        self.shape = shape
        self.layers: tuple[int, ...] = getattr(shape, "features", (layers,))
        if getattr(shape, "own_embedding", False):
            width = getattr(shape, "width", None) or shape.layer.width
            self.embed_tokens = nn.Embedding(shape.vocab, width)

    def released(self) -> dict[str, Tensor]:
        """Return the weights by parameter, in the shapes that files of the head have."""
        return self._converted(self.state_dict(), TargetLayer.split)

    def grouped(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return `tensors`, by the names of `released`, as the network has them: experts stacked.

        The dict itself is changed, so that no expert is in memory twice.
        """
        return self._converted(tensors, TargetLayer.stack)

    def _converted(
        self, weights: dict[str, Tensor], convert: Callable[[TargetLayer, Any], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return `weights` itself, those of each target layer replaced by `convert` of them."""
        for path, block in self.named_modules():
            if isinstance(block, TargetLayer):
                names = [name for name in weights if name.startswith(f"{path}.")]
                inner = {name[len(path) + 1 :]: weights.pop(name) for name in names}
                weights |= {f"{path}.{name}": w for name, w in convert(block, inner).items()}
        return weights

    def meet(self, target: TargetParts) -> None:
        """Take what the loaded network needs of `target`, once; DataError: it has no such part."""

    def embed(self, tokens: Tensor, embed: Rows) -> Tensor:
        """Embed [m] tokens to [m, H] by its own table, if any, else by `embed`, the target's."""
        table: Rows = getattr(self, "embed_tokens", embed)
        return table(tokens)

    def ranked(self, rows: Tensor, head: Rows) -> Tensor:
        """Map [n, H] to [n, Vd] logits by its own head, else by the target's `head` at `ids`."""
        if hasattr(self, "lm_head"):
            logits: Tensor = self.lm_head(rows)
            return logits
        theirs = head(rows)
        return theirs if self.ids is None else theirs[:, self.ids]


class HeadNetwork(HeadModule):
    """The base of recurrent heads, one subclass a family: features in, the next token's out.

    Row j of a pass holds the features of token j and the embedding of token j + 1, has position j,
    and predicts token j + 2. H is the head's width, Ht the target's, n the hidden states that the
    head reads, V the target's vocabulary.
    """

    rotary: Rotary

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        """Fuse n times [m, Ht] hidden states of the target to [m, H] features: of one, itself."""
        return hidden[0]

    @abstractmethod
    def step(
        self, features: Tensor, embedded: Tensor, places: RowPositions, cache: Cache, sees: Any
    ) -> Tensor:
        """Run one pass over m rows, append their keys and values to `cache`, and return [m, H].

        `features` are [m, H], `embedded` [m, H] the embeddings of the tokens after them, `places`
        what `rotary` gives for the rows; `sees` is what each row attends to, as `Attention` takes
        it; None: everything. The result are the features of those tokens, as the next pass takes
        them.
        """

    @torch.inference_mode()
    def steps(self, every: Sequence[tuple[Any, ...]]) -> Sequence[Tensor]:
        """Run `step` for one or more texts as one pass; return the result of each, in order.

        Each of `every` is the tuple of a text's arguments of `step`; its keys and values go to its
        own cache.
        """
        if len(every) == 1:
            return [self.step(*every[0])]
        *rows, places, caches, sees = zip(*every, strict=True)
        sizes = [len(features) for features in rows[0]]
        cache: Any = TextCaches(sizes, caches, sees)
        features, embedded = map(torch.cat, rows)
        at = RowPositions(*map(torch.cat, zip(*places, strict=True)))
        return torch.split(self.step(features, embedded, at, cache, None), sizes)

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        """Map [m, H] features to [m, Vd] logits of the next token by `head`, the target's own."""
        return head(features)


class Target(NamedTuple):
    """The environment of a head network: the target's parts, the cache and the vocabulary."""

    embed: Rows  # [m] tokens -> [m, H], in the network's dtype
    head: Rows  # [m, H] -> [m, V], the target's own
    cache: Cache  # cache of the head's layers
    rows: Callable[..., Tensor]  # (name, call, *[n, ...] rows) -> call(*rows), made once for the
    # texts of a batch that wait for a call of this name


class ParallelNetwork(HeadModule):
    """The base of parallel heads; H its width, Ht the target's, Vd its vocabulary, S its state.

    `deepest` is the greatest depth of a draft. `marginal`: the probs of a depth depend on no
    drafted token. `rolls`: states end in logits, and all steps after the first are one pass,
    ("step", 1), over tokens and states.
    """

    deepest: int
    marginal = rolls = False

    def read(self, hidden: Sequence[Tensor], tokens: Tensor, past: int, target: Target) -> Tensor:
        """Read n times [m, Ht] hidden states and the [m] next tokens; return the newest [H].

        `past` rows were read before. A head without layers of its own needs the last row only.
        """
        return hidden[0][-1]

    @abstractmethod
    def look(self, newest: Tensor, token: Tensor, place: int, count: int, target: Target) -> Any:
        """Compute what a round needs, once: it is `seen` in the other methods.

        `newest` is [H] as `read` returned it, `token` [] the pending one, which has no features
        yet, `place` the position of that token's row, and `count` the greatest depth that the round
        may ask for.
        """

    def start(self, seen: Any, token: Tensor, target: Target) -> Tensor:
        """Return [S], the state after the pending token, before the first drafted one."""
        return token.new_empty(0)

    @abstractmethod
    def scores(self, seen: Any, depth: int, states: Tensor, target: Target) -> Tensor:
        """Map [n, S] states after paths of `depth` tokens to [n, Vd] logits of the next."""

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, target: Target) -> Tensor:
        """Advance [n, S] states by the [n] tokens drafted after them."""
        return states


class Marginal(ParallelNetwork):
    """The base of heads whose probs ignore drafted tokens: `look` returns [count, Vd]."""

    marginal = True

    def scores(self, seen: Any, depth: int, states: Tensor, target: Target) -> Tensor:
        """Return the same logits for every path."""
        row: Tensor = seen[depth]
        return row.expand(len(states), -1)


def load_network(head: Any, target: TargetParts) -> Any:
    """Make the network of a `Head`, to evaluate, over its loaded tensors, which are not copied.

    Embeddings, or a shared output layer, that equal the target's are dropped: it uses the target's.
    A map of the vocabulary becomes `ids`. Experts are stacked in `head.tensors` too, which loses
    what is dropped then. DataError: such a map leads outside, or the target lacks a needed part.
    """
    shape, tensors = head.shape, dict(head.tensors)
    for flag, ending, equal in (
        ("own_embedding", "embed_tokens.weight", shares_embeddings),
        ("shared_head", "lm_head.weight", is_target_head),
    ):
        copies = [name for name in tensors if name.endswith(ending)]
        if getattr(shape, flag, False) and all(equal(tensors[name], target) for name in copies):
            tensors = {name: tensor for name, tensor in tensors.items() if name not in copies}
            shape = replace(shape, **{flag: False})
    ids, tensors = known_ids(shape, tensors, target.vocab_size)
    if (listed := tensors.pop("token_map", None)) is not None:
        ids = map_ids(listed, target.vocab_size)
    with torch.device("meta"):
        network = head.network(shape, head.state or target.config.num_hidden_layers)
    if not network.state_dict().keys() <= tensors.keys():
        head.tensors.clear()  # experts are in memory once: stacked, for the next network too
        tensors = network.grouped(tensors)
        head.tensors.update(tensors)
    network.load_state_dict(tensors, strict=True, assign=True)
    network.ids = None if ids is None else ids.long()
    for module in network.modules():
        if isinstance(module, HeadModule):
            module.meet(target)
    first = next(network.parameters())
    network.dtype = first.dtype
    return network.to(first.device).eval().requires_grad_(False)  # buffers too


def shares_embeddings(embeddings: Tensor, target: TargetParts) -> bool:
    """Return whether a head's own `embeddings` [V, H] are a copy of the target's."""
    size = min(len(embeddings), target.vocab_size)  # the rest are rows of padding
    theirs = target.embed(torch.arange(size, device=target.device))
    return theirs.shape[1] == embeddings.shape[1] and torch.equal(
        theirs.to(embeddings.dtype), embeddings[:size].to(theirs.device)
    )


def is_target_head(rows: Tensor, target: TargetParts) -> bool:
    """Return whether `rows` [V, H] are a copy of the target's output layer, if that is plain."""
    weight = getattr(target.lm_head, "weight", None)
    if weight is None or weight.shape != rows.shape:
        return False
    return torch.equal(weight.to(rows.dtype), rows.to(weight.device))


def known_ids(
    shape: Any, tensors: Mapping[str, Tensor], vocab: int
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return [Vd] the target's token of each row, None without d2t, and the weights without maps.

    Row i is token i + d2t[i]. Tokens from `vocab` on, padding, are cut, their rows of weights not.
    DataError: tokens that t2d lacks, that do not rise, or lie outside the head's vocabulary.
    """
    weights = dict(tensors)
    offsets, mask = weights.pop("d2t", None), weights.pop("t2d", None)
    if offsets is None:
        return None, weights
    ids = torch.arange(len(offsets), device=offsets.device) + offsets.long()
    rising = bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < shape.vocab
    if not rising or (mask is not None and not bool(mask.bool()[ids].all())):
        raise DataError(
            f"d2t does not lead into a vocabulary of {shape.vocab}: expected offsets, which give "
            "row i the token i + d2t[i], each one in t2d. Fetch the head again"
        )
    return ids[ids < vocab], weights


def map_ids(ids: Tensor, vocab: int) -> Tensor:
    """Return `ids` [Vd], target tokens of a reduced vocabulary; DataError: outside, or twice."""
    if not bool(((ids >= 0) & (ids < vocab)).all()) or len(set(ids.tolist())) < len(ids):
        raise DataError(
            f"token_map does not lead into a vocabulary of {vocab}: expected each row's token, "
            "none twice. Fetch the head again"
        )
    return ids
