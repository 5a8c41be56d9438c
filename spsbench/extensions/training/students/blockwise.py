"""Blockwise-decoding heads, trained from scratch.

Source: Stern et al. 2018 (arXiv 1811.03115, section 6).
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.head_parts import Chained, HeadTarget, begun, layer_of
from spsbench.heads.blockwise import BlockwiseNetwork, BlockwiseShape


class BlockwiseStudent(Chained):
    """Heads of blockwise decoding, over the target's frozen output projection.

    Layers are initialised to add nothing. The paper's p_1 is the target itself, so its p_2 is head
    0 here.
    """

    drafter = "blockwise"
    rate = 1e-3
    network_class = BlockwiseNetwork
    usual_depth = 4
    sizes = (("heads", "count"), ("inner", "inner"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> BlockwiseShape:
        layer = layer_of(target.parts, options.inner, "blockwise")
        return BlockwiseShape(
            width=layer.width,
            inner=layer.inner,
            vocab=target.parts.vocab_size,
            count=self.depth,
        )

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Let each head begin as the identity."""
        begun(self.network, seed)
        for head in self.network.heads:
            head.down.weight.zero_()

    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
        """Yield each head's state; all heads read the same hidden state."""
        for head in self.network.heads[:depth]:
            yield head(hidden), self.target_head

    def config(self) -> dict[str, Any]:
        return {
            "model_type": "blockwise",
            "base_model_name_or_path": self.target_name,
            "hidden_size": self.shape.width,
            "inner_size": self.shape.inner,
            "vocab_size": self.shape.vocab,
            "num_heads": self.shape.count,
        }
