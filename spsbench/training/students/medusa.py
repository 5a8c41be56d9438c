"""Medusa-1 heads, trained from scratch.

Source: Cai et al. 2024 (arXiv 2401.10774, sections 2.1.1 and 2.2.1).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.medusa import MedusaNetwork
from spsbench.models.heads.description import MedusaShape
from spsbench.training.students.head_parts import Chained, draft_vocabulary, layer_of, write_head

COUNT = 4


class MedusaStudent(Chained):
    """Medusa heads, initialised as the authors do: residual blocks add nothing.

    Projections are the rows of the target's output head.
    """

    drafter = "medusa"
    rate = 1e-3
    network: MedusaNetwork

    def __init__(
        self,
        target: TargetParts,
        head: Tensor,
        name: str,
        counts: Tensor,
        *,
        depth: int | None,
        draft_vocab: int | None,
    ) -> None:
        vocab, width = target.vocab_size, layer_of(target, None, "medusa").width
        ids = draft_vocabulary(counts, draft_vocab).to(head.device)
        count = depth or COUNT
        shape = MedusaShape(width=width, draft_vocab=len(ids), count=count, bias=False)
        self.network = MedusaNetwork(shape, int(target.config.num_hidden_layers))
        self._heads: list[Any] = list(self.network.heads)
        with torch.no_grad():
            for each in self._heads:
                each.blocks[0].weight.zero_()
                each.lm_head.weight.copy_(head[ids].float())
        self.network.to(target.device)
        self.depth = self.most = count
        self.ids = None if len(ids) == vocab else ids
        self._chosen, self._shape, self._name, self._vocab = ids, shape, name, vocab

    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, nn.Module]]:
        """Yield each head's state; all heads read the same hidden state."""
        for each in self._heads[:depth]:
            x = hidden
            for block in each.blocks:
                x = x + silu(block(x))
            yield x, each.lm_head

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the heads in vLLM's format, with the ids of a reduced vocabulary."""
        shape = self._shape
        config: dict[str, Any] = {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "base_model_name_or_path": self._name,
            "hidden_size": shape.width,
            "vocab_size": self._vocab,
            "truncated_vocab_size": shape.draft_vocab,
            "num_heads": shape.count,
            "num_hidden_layers": shape.depth,
        }
        tensors = {}
        for i, each in enumerate(self._heads):
            tensors[f"blocks.{i}.layers.0.weight"] = each.blocks[0].weight
            tensors[f"lm_heads.{i}.weight"] = each.lm_head.weight
        if self.ids is not None:
            tensors["token_map"] = self._chosen
        write_head(folder, config, tensors, dtype)

    def describe(self) -> dict[str, Any]:
        """Return the sizes of the heads."""
        shape = self._shape
        return {**super().describe(), "heads": shape.count, "draft_vocab": shape.draft_vocab}
