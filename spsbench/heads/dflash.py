"""DFlash and DSpark: a block of tokens by one pass of a small diffusion model (arXiv 2602.06036).

The target's features, fused by `fc` and normed, are keys and values in every layer; they are
written once, as the text grows. The block is the pending token and masks after it. Its rows see the
features of the whole text and each other, later ones too. Distributions in a block are marginals;
independent draws from them do not cohere: so DFlash drafts the likeliest tokens unless
`sampled=true` is asked for. Trees of the best paths by the product of marginals (`width`, `nodes`)
are those of DDTree (arXiv 2604.12989).

DSpark (arXiv 2607.05147) adds to the logits of a row a bias of rank r that depends on the token
before it, so that a chain drawn from left to right is coherent. `gated` weighs it by the row, `rnn`
keeps a state along the block. A head without the coupling (`markov_rank` 0) is a DFlash head.

Sources: z-lab/dflash, sgl-project/SpecForge, vllm-project/speculators `dflash/core.py` and
`dspark/model_definitions.py`. The first two have `dflash_config`, whose `target_layer_ids` are
outputs of layers, hidden state i + 1; speculators has the sizes in `transformer_layer_config` and
numbers hidden states. Domino and DFlash2 have tensors that nothing here reads, and are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.errors import DataError, UsageError
from spsbench.heads.eagle3 import ids
from spsbench.heads.files import MANY, Files, hidden_states, read_object, read_size
from spsbench.heads.layers import Layer, LayerShape, Rotary, as_filed, layer_shape, layers_in
from spsbench.heads.network import HeadModule, Marginal, Target

COUPLINGS = ("vanilla", "gated", "rnn")
MARKOV = "markov_head.markov_w1.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The shape of a block-diffusion head: DFlash, or DSpark with its coupling."""

    layer: LayerShape
    depth: int  # layers
    windows: tuple[int, ...]  # tokens before the block that each layer sees; 0 = all
    looks_ahead: bool  # whether rows of a layer with a window see later rows of the block
    features: tuple[int, ...]  # hidden states of the target, as transformers numbers them
    target_width: int
    block: int  # rows of a pass: the pending token, then masks
    mask: int  # token
    from_first: bool  # the first row drafts, too
    vocab: int
    draft_vocab: int
    rank: int = 0  # rank of the coupling; 0 = none
    coupling: str = ""  # vanilla, gated or rnn
    own_head: bool = False
    own_embedding: bool = False


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> BlockShape:
    """Return the shape of a DFlash or DSpark head for a target of `layers` (None: unknown).

    DataError: values that are no such head; UsageError: nobody says which hidden states it reads.
    """
    config, where = files.config, files.where
    theirs = "speculators_model_type" in config
    inner = read_object(config, "transformer_layer_config", where) if theirs else config
    nested: Mapping[str, Any] = {} if theirs else (config.get("dflash_config") or {})
    flat = {**nested, **{key: value for key, value in config.items() if value is not None}}
    layer = as_filed(headers, layer_shape(inner, where))
    depth = layers_in(headers, inner, where)
    coupled = config.get("speculators_model_type") == "dspark" or MARKOV in headers
    rank = read_size(flat, "markov_rank", where, 256, least=0) if coupled else 0
    kind = str(flat.get("markov_head_type") or "vanilla")
    if rank and kind not in COUPLINGS:
        raise DataError(
            f"markov_head_type {kind!r} ({where}): expected one of {', '.join(COUPLINGS)}. Such "
            "heads are not known"
        )
    vocab = read_size(inner, "vocab_size", where)
    return BlockShape(
        layer=layer,
        depth=depth,
        windows=windows(inner, depth, where),
        looks_ahead=bool(flat.get("sliding_window_non_causal", False)),
        features=features(files, flat, theirs, layers, depth),
        target_width=read_size(flat, "target_hidden_size", where, layer.width),
        block=read_size(flat, "block_size", where, most=MANY, least=2),
        mask=read_size(flat, "mask_token_id", where, most=vocab - 1, least=0),
        from_first=bool(flat.get("sample_from_anchor", coupled)),
        vocab=vocab,
        draft_vocab=read_size(flat, "draft_vocab_size", where, vocab) if theirs else vocab,
        rank=rank,
        coupling=kind if rank else "",
        own_head="lm_head.weight" in headers,
        own_embedding="embed_tokens.weight" in headers,
    )


def windows(config: Mapping[str, Any], depth: int, where: str) -> tuple[int, ...]:
    """Return windows of sliding layers, 0 of others; DataError: no size, or not `depth` kinds."""
    kinds = config.get("layer_types") or ["full_attention"] * depth
    if len(set(kinds)) == 1:
        kinds = kinds[:1] * depth
    if len(kinds) != depth:
        raise DataError(
            f"layer_types has {len(kinds)} entries ({where}): expected {depth}, one a layer. Check "
            "`draft`"
        )
    return tuple(
        read_size(config, "sliding_window", where) if kind == "sliding_attention" else 0
        for kind in kinds
    )


def features(
    files: Files, flat: Mapping[str, Any], theirs: bool, layers: int | None, depth: int
) -> tuple[int, ...]:
    """Return the hidden states that the head reads: the user's, the file's, or DFlash's defaults.

    The defaults spread over a target of `layers` layers (None: as many as the file says), one for
    each of the head's `depth` layers. `flat` is the config with what is nested in it. `theirs`: the
    form of speculators, which numbers hidden states as transformers does; DFlash's own form numbers
    them one less. UsageError: neither user nor file says which, nor the target's layers.
    """
    where = files.where
    if chosen := hidden_states(files.overrides.get("features", ""), "dflash"):
        return chosen
    listed = ids(flat.get("aux_hidden_state_layer_ids"), where)
    if not theirs:
        listed = [i + 1 for i in ids(flat.get("target_layer_ids"), where)]
    if listed:
        return tuple(listed)
    layers = flat.get("num_target_layers") if layers is None else layers
    if not isinstance(layers, int):
        raise UsageError(
            f"{files.folder} does not say which hidden states it reads: expected target_layer_ids "
            "in config.json. Write them there, counted from 0 as outputs of layers"
        )
    if depth == 1:
        return (layers // 2 + 1,)
    return tuple(round(1 + i * (layers - 4) / (depth - 1)) + 1 for i in range(depth))


class DFlashNetwork(Marginal):
    """`fc` [H, n * Ht], layers over [text; block], a norm, and the target's head or its own."""

    shape: BlockShape

    def __init__(self, shape: BlockShape, layers: int) -> None:
        super().__init__(shape, layers)
        layer = shape.layer
        self.deepest = shape.block - (0 if shape.from_first else 1)
        self.fc = nn.Linear(len(shape.features) * shape.target_width, layer.width, bias=False)
        self.hidden_norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.stack = nn.ModuleList(Layer(layer, i) for i in range(shape.depth))
        self.norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.rotary = Rotary(layer)
        if shape.own_head:
            self.lm_head = nn.Linear(layer.width, shape.draft_vocab, bias=False)

    def read(self, hidden: Sequence[Tensor], tokens: Tensor, past: int, target: Target) -> Tensor:
        """Cache keys and values of the fused rows, `past` the first place; return the last [H]."""
        fused = self.hidden_norm(self.fc(torch.cat(list(hidden), -1)))
        turns = self.rotary(torch.arange(past, past + len(fused), device=fused.device), fused.dtype)
        for layer in self.stack:
            attention: Any = layer.self_attn
            attention.append_kv(fused, turns, target.cache)
        newest: Tensor = fused[-1]
        return newest

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, target: Target) -> Any:
        return self.ranked(self.rows(token, place, target)[-self.deepest :][:count], target.head)

    def rows(self, token: Tensor, place: int, target: Target) -> Tensor:
        """Return the [block, H] normed rows of one pass, of which the last `deepest` draft.

        The first is the pending `token` at `place`, the others are masks; the cache grows by them.
        """
        masks = token.new_full((self.shape.block,), self.shape.mask)
        x = target.embed(torch.cat([token[None], masks[1:]]))
        turns = self.rotary(torch.arange(place, place + len(x), device=token.device), x.dtype)
        for layer, window in zip(self.stack, self.shape.windows, strict=True):
            x = layer(x, turns, target.cache, self._sees(place, window, token.device))
        normed: Tensor = self.norm(x)
        return normed

    def _sees(self, past: int, window: int, device: torch.device) -> Tensor | None:
        """Return [block, past + block] bool, True: seen, later rows by `looks_ahead`; None: all."""
        if not window:
            return None
        size = self.shape.block
        sees = torch.ones(size, past + size, dtype=torch.bool, device=device)
        sees[:, : max(0, past - window)] = False  # counted from the pending token, for every row
        return sees if self.shape.looks_ahead else sees.tril(past)


class Markov(nn.Module):
    """The coupling of DSpark: `markov_w1` [V, r] of the last token, `markov_w2` [Vd, r]."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        wide, rank = shape.layer.width, shape.rank
        self.markov_w1 = nn.Embedding(shape.vocab, rank)
        self.markov_w2 = nn.Linear(rank, shape.draft_vocab, bias=False)
        if shape.coupling == "gated":
            self.gate_proj = nn.Linear(wide + rank, rank)
        elif shape.coupling == "rnn":
            self.joint_proj = nn.Linear(2 * rank + wide, 3 * rank)


class Look(NamedTuple):
    """The results of one pass that a round needs."""

    rows: Tensor  # [count, H] that draft
    logits: Tensor  # [count, Vd] before any coupling
    first: Tensor | None  # [H] the row of the pending token where that row does not draft


class DSparkNetwork(DFlashNetwork):
    """A DFlash network with a state [2r]: the recurrence, and the last token's embedding."""

    marginal = False

    def __init__(self, shape: BlockShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.markov_head = Markov(shape)

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, target: Target) -> Any:
        rows = self.rows(token, place, target)
        drafting = rows[-self.deepest :][:count]
        first = None if self.shape.from_first else rows[0]
        return Look(drafting, self.ranked(drafting, target.head), first)

    def start(self, seen: Any, token: Tensor, target: Target) -> Tensor:
        before = self.markov_head.markov_w1(token)
        state = torch.cat([torch.zeros_like(before), before])
        if self.shape.coupling == "rnn" and seen.first is not None:
            kept, _ = self._along(state[None], seen.first)
            state = torch.cat([kept[0], before])
        return state

    def scores(self, seen: Any, depth: int, states: Tensor, target: Target) -> Tensor:
        _, bias = self._along(states, seen.rows[depth])
        logits = seen.logits[depth]
        biased: Tensor = logits + self.markov_head.markov_w2(bias)[:, : len(logits)]  # no padding
        return biased

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, target: Target) -> Tensor:
        kept, _ = self._along(states, seen.rows[depth])
        return torch.cat([kept, self.markov_head.markov_w1(tokens)], -1)

    def _along(self, states: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Advance [n, 2r] states by a row [H]; return recurrence and bias inputs, each [n, r]."""
        kept, before = states.chunk(2, -1)
        rows = row.expand(len(states), -1)
        if self.shape.coupling == "gated":
            gate = self.markov_head.gate_proj(torch.cat([rows, before], -1)).sigmoid()
            return kept, gate * before
        if self.shape.coupling == "rnn":
            joint = self.markov_head.joint_proj(torch.cat([kept, before, rows], -1))
            gate, new, out = joint.chunk(3, -1)
            gate = gate.sigmoid()
            return gate * kept + (1 - gate) * new.tanh(), out.tanh()
        return kept, before


def network(shape: BlockShape, layers: int) -> HeadModule:
    """Make the network with the coupling, if the head has one."""
    return DSparkNetwork(shape, layers) if shape.rank else DFlashNetwork(shape, layers)
