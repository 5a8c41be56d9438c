"""Medusa-1 heads, trained from scratch.

Source: Cai et al. 2024 (arXiv 2401.10774, sections 2.1.1 and 2.2.1).
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import silu

from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.head_parts import (
    Chained,
    HeadTarget,
    draft_vocabulary,
    layer_of,
)
from spsbench.heads.medusa import MedusaNetwork, MedusaShape


class MedusaStudent(Chained):
    """Medusa heads, initialised as the authors do: residual blocks add nothing.

    Projections are the rows of the target's output head.
    """

    drafter = "medusa"
    rate = 1e-3
    network_class = MedusaNetwork
    usual_depth = 4
    sizes = (("heads", "count"), ("draft_vocab", "draft_vocab"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> MedusaShape:
        width = layer_of(target.parts, None, "medusa").width
        ids = draft_vocabulary(target.counts, options.draft_vocab).to(target.head.device)
        self.vocab, self.chosen = target.parts.vocab_size, ids
        self.ids = None if len(ids) == self.vocab else ids
        return MedusaShape(
            width=width,
            vocab=target.parts.vocab_size,
            draft_vocab=len(ids),
            count=self.depth,
            bias=False,
        )

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Let each head begin as the target's own."""
        for head in self.network.heads:
            head.blocks[0].weight.zero_()
            head.lm_head.weight.copy_(target.head[self.chosen].float())

    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, nn.Module]]:
        """Yield each head's state; all heads read the same hidden state."""
        for head in self.network.heads[:depth]:
            x = hidden
            for block in head.blocks:
                x = x + silu(block(x))
            yield x, head.lm_head

    def config(self) -> dict[str, Any]:
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
