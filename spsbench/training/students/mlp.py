"""An MLP speculator, trained from scratch.

Source: Wertheimer et al. 2024 (arXiv 2404.19124, section 2).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.mlp import MlpNetwork, normed, nth
from spsbench.models.heads.description import MlpShape
from spsbench.training.students.head_parts import Chained, ahead, layer_of, write_head

COUNT = 3


class MlpStudent(Chained):
    """MLP speculator whose stages share their weights, as IBM's newer heads do.

    Initialised from the target's embeddings and output head if no wider than the target.
    """

    drafter = "mlp"
    rate = 1e-3
    network: MlpNetwork

    def __init__(
        self,
        target: TargetParts,
        embedding: Tensor,
        head: Tensor,
        *,
        depth: int | None,
        inner: int | None,
        seed: int,
    ) -> None:
        width = layer_of(target, None, "mlp").width
        self._shape = MlpShape(
            width=width,
            inner=inner or width,
            vocab=target.vocab_size,
            count=depth or COUNT,
            tied=True,
            scaled=True,
        )
        self.network = MlpNetwork(self._shape, int(target.config.num_hidden_layers))
        _begin(self.network, self._shape, embedding.float(), head.float(), seed)
        self.network.to(target.device)
        self.depth = self.most = self._shape.count

    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, nn.Module]]:
        """Yield the state of each stage; stage i has read token j + 1 + i."""
        x = normed(hidden) / 2**0.5 if self._shape.scaled else hidden
        for i in range(depth):
            x = self.network.stage(i, x, ahead(tokens, 1 + i))
            yield x, nth(self.network.head, i)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the head in IBM's format; of tied weights the first copy."""
        shape = self._shape
        config: dict[str, Any] = {
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
        tensors = {f"speculator.{n}": weight for n, weight in self.network.state_dict().items()}
        write_head(folder, config, tensors, dtype)

    def describe(self) -> dict[str, Any]:
        """Return the sizes of the head."""
        shape = self._shape
        return {**super().describe(), "stages": shape.count, "inner": shape.inner}


@torch.no_grad()
def _begin(network: Any, shape: MlpShape, embedding: Tensor, head: Tensor, seed: int) -> None:
    """Initialise a head no wider than the target by projections of the target's rows.

    The projection keeps the principal directions of the rows.
    """
    draw = torch.Generator().manual_seed(seed)
    spread = shape.inner**-0.5
    for name, weight in network.named_parameters():
        if weight.ndim < 2:
            weight.fill_(0.0 if "bias" in name else 1.0)
        else:
            weight.copy_(torch.randn(weight.shape, generator=draw) * spread)
    if shape.inner > shape.width:
        return
    rows = head[: shape.vocab].cpu()
    basis = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -shape.inner :]  # [H, D]
    own = embedding[: shape.vocab].cpu() @ basis
    network.emb[0].weight.copy_(own * (spread / own.std()))
    network.head[0].weight.copy_(rows @ basis)
    network.proj[0].weight.copy_(basis.T)
