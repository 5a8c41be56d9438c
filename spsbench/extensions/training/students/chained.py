"""Heads that predict several tokens from one hidden state: Medusa, MLP speculator, blockwise.

Sources: Medusa-1 (arXiv 2401.10774, sections 2.1.1 and 2.2.1); Wertheimer et al. 2024 (arXiv
2404.19124, section 2); Stern et al. 2018 (arXiv 1811.03115, section 6).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from spsbench.extensions.training.batches import TeacherOutput, TextBatch
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.student import (
    HeadStudent,
    HeadTarget,
    StudentPrediction,
    draft_vocabulary,
    init_weights,
    layer_of,
    select_continuation,
)
from spsbench.heads.blockwise import BlockwiseNetwork, BlockwiseShape
from spsbench.heads.medusa import MedusaNetwork, MedusaShape
from spsbench.heads.mlp import MlpNetwork, MlpShape, nth

States = Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]
"""For each depth a state [B, T, .] and its projection to logits."""


class Chained(HeadStudent):
    """Heads that predict several tokens from the target's last hidden state.

    From hidden state j and the tokens after it, row j of pass d predicts token j + 2 + d of a text,
    which is the target of row j + 1 + d of the batch.
    """

    rate = 1e-3

    def __init__(self, options: HeadTraining, target: HeadTarget) -> None:
        super().__init__(options, target)
        self.most = self.depth

    @abstractmethod
    def states(self, hidden: Tensor, tokens: Tensor, depth: int) -> States:
        """Yield the state [B, T, .] of each depth, and its projection to logits, `depth` times.

        `hidden` [B, T, D] are the target's last hidden states, `tokens` [B, T] the text's; 0
        beyond.
        """

    def predict(
        self, batch: TextBatch, output: TeacherOutput, depth: int
    ) -> Iterator[StudentPrediction]:
        """Yield `depth` predictions, of N rows each, 0 or more.

        Number d, from 0, is of those rows of continuations that are 1 + d or later in their text.
        """
        texts, length = batch.ids.shape
        hidden = output.hidden[-1].to(next(self.network.parameters()).dtype)
        first = torch.arange(texts, device=hidden.device)[:, None] * length
        for d, (state, head) in enumerate(self.states(hidden, batch.ids, depth)):
            place = torch.arange(max(length - 1 - d, 0), device=hidden.device)
            at, target_rows = select_continuation(batch, (first + place + 1 + d).flatten())
            yield StudentPrediction(target_rows, head(state[:, : len(place)].flatten(0, 1)[at]))


class MedusaStudent(Chained):
    """Medusa heads, initialised as the authors do: residual blocks add nothing.

    Projections are the rows of the target's output head.
    """

    drafter = "medusa"
    network_class = MedusaNetwork
    usual_depth = 4
    sizes = (("heads", "count"), ("draft_vocab", "draft_vocab"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> MedusaShape:
        """Return the shape of `depth` heads, and set the draft vocabulary, `chosen` and `ids`."""
        width = layer_of(target.parts, None, "medusa").width
        self.chosen = draft_vocabulary(target.counts, options.draft_vocab).to(target.head.device)
        size, vocab = len(self.chosen), self.vocab
        self.ids = None if size == vocab else self.chosen
        return MedusaShape(width=width, vocab=vocab, draft_vocab=size, count=self.depth, bias=False)

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Let each head begin as the target's own."""
        for head in self.network.heads:
            head.blocks[0].weight.zero_()
            head.lm_head.weight.copy_(target.head[self.chosen].float())

    def states(self, hidden: Tensor, tokens: Tensor, depth: int) -> States:
        for head in self.network.heads[:depth]:
            x = hidden
            for block in head.blocks:
                x = x + silu(block(x))
            yield x, head.lm_head

    def config(self) -> dict[str, Any]:
        """Return a config.json of Medusa, with the size of the draft vocabulary for vLLM."""
        return {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "base_model_name_or_path": self.target_name,
            "hidden_size": self.shape.width,
            "vocab_size": self.vocab,
            "truncated_vocab_size": self.shape.draft_vocab,
            "num_heads": self.shape.count,
            "num_hidden_layers": self.shape.depth,
        }

    def tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for i, head in enumerate(self.network.heads):
            tensors[f"blocks.{i}.layers.0.weight"] = head.blocks[0].weight
            tensors[f"lm_heads.{i}.weight"] = head.lm_head.weight
        return tensors if self.ids is None else {**tensors, "token_map": self.ids}


class MlpStudent(Chained):
    """MLP speculator whose stages share their weights, as IBM's newer heads do.

    Initialised from the target's embeddings and output head if no wider than the target.
    """

    drafter = "mlp"
    network_class = MlpNetwork
    usual_depth = 3
    renamed = ("", "speculator.")
    sizes = (("stages", "count"), ("inner", "inner"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> MlpShape:
        width, count = layer_of(target.parts, None, "mlp").width, self.depth
        inner = options.inner or width
        return MlpShape(
            width=width, inner=inner, vocab=self.vocab, count=count, tied=True, scaled=True
        )

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Set random weights by `seed`; a head no wider than the target has its rows, projected.

        The projection keeps the principal directions of the output rows.
        """
        network, shape = self.network, self.shape
        draw = torch.Generator().manual_seed(seed)
        spread = shape.inner**-0.5
        for name, weight in network.named_parameters():
            if weight.ndim < 2:
                weight.fill_(0.0 if "bias" in name else 1.0)
            else:
                weight.copy_(torch.randn(weight.shape, generator=draw) * spread)
        if shape.inner > shape.width:
            return
        rows = target.head.float()[: shape.vocab].cpu()
        basis = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -shape.inner :]  # [H, D]
        projected = target.embedding.float()[: shape.vocab].cpu() @ basis
        network.emb[0].weight.copy_(projected * (spread / projected.std()))
        network.head[0].weight.copy_(rows @ basis)
        network.proj[0].weight.copy_(basis.T)

    def states(self, hidden: Tensor, tokens: Tensor, depth: int) -> States:
        x = self.network.before(hidden)
        for i in range(depth):
            after = pad(tokens[:, 1 + i :], (0, 1 + i))  # 0 beyond the end
            x = self.network.stage(i, x, after)
            yield x, nth(self.network.head, i)

    def config(self) -> dict[str, Any]:
        """Return a config.json of IBM's MLP speculators."""
        shape = self.shape
        return {
            "model_type": "mlp_speculator",
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "emb_dim": shape.width,
            "inner_dim": shape.inner,
            "n_predict": shape.count,
            "scale_input": shape.scaled,
            "tie_weights": shape.tied,
            "top_k_tokens_per_head": [4] * shape.count,
            "vocab_size": shape.vocab,
        }


class BlockwiseStudent(Chained):
    """Heads of blockwise decoding, over the target's frozen output projection.

    Layers are initialised to add nothing. The paper's p_1 is the target itself, so its p_2 is head
    0 here.
    """

    drafter = "blockwise"
    network_class = BlockwiseNetwork
    usual_depth = 4
    sizes = (("heads", "count"), ("inner", "inner"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> BlockwiseShape:
        layer = layer_of(target.parts, options.inner, "blockwise")
        width, inner = layer.width, layer.inner
        return BlockwiseShape(width=width, inner=inner, vocab=self.vocab, count=self.depth)

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Set random weights by `seed`; each head begins as the identity."""
        init_weights(self.network, seed)
        for head in self.network.heads:
            head.down.weight.zero_()

    def states(self, hidden: Tensor, tokens: Tensor, depth: int) -> States:
        for head in self.network.heads[:depth]:
            yield head(hidden), self.target_head

    def config(self) -> dict[str, Any]:
        """Return the config.json of blockwise heads, a format of this package."""
        return {
            "model_type": "blockwise",
            "base_model_name_or_path": self.target_name,
            "hidden_size": self.shape.width,
            "inner_size": self.shape.inner,
            "vocab_size": self.shape.vocab,
            "num_heads": self.shape.count,
        }
