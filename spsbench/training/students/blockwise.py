"""Blockwise-decoding heads, trained from scratch.

Source: Stern et al. 2018 (arXiv 1811.03115, section 6).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.blockwise import BlockwiseNetwork
from spsbench.models.heads.description import BlockwiseShape
from spsbench.training.students.head_parts import Chained, begun, head_of, layer_of, write_head

COUNT = 4


class BlockwiseStudent(Chained):
    """Heads of blockwise decoding, over the target's frozen output projection.

    Layers are initialised to add nothing. The paper's p_1 is the target itself, so its p_2 is head
    0 here.
    """

    drafter = "blockwise"
    rate = 1e-3
    network: BlockwiseNetwork

    def __init__(
        self, target: TargetParts, name: str, *, depth: int | None, inner: int | None, seed: int
    ) -> None:
        layer = layer_of(target, inner, "blockwise")
        self._shape = BlockwiseShape(
            width=layer.width, inner=layer.inner, vocab=target.vocab_size, count=depth or COUNT
        )
        self.network = BlockwiseNetwork(self._shape, int(target.config.num_hidden_layers))
        begun(self.network, seed)
        self._heads: list[Any] = list(self.network.heads)
        with torch.no_grad():
            for each in self._heads:
                each.down.weight.zero_()
        self.network.to(target.device)
        self.depth = self.most = self._shape.count
        self._their_head, self._name = head_of(target), name

    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
        """Yield each head's state; all heads read the same hidden state."""
        for each in self._heads[:depth]:
            yield each(hidden), self._their_head

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the heads in this package's own format, since no other exists."""
        shape = self._shape
        config: dict[str, Any] = {
            "model_type": "blockwise",
            "base_model_name_or_path": self._name,
            "hidden_size": shape.width,
            "inner_size": shape.inner,
            "vocab_size": shape.vocab,
            "num_heads": shape.count,
        }
        write_head(folder, config, self.network.state_dict(), dtype)

    def describe(self) -> dict[str, Any]:
        """Return the sizes of the heads."""
        shape = self._shape
        return {**super().describe(), "heads": shape.count, "inner": shape.inner}
