"""An MLP speculator, trained from scratch.

Source: Wertheimer et al. 2024 (arXiv 2404.19124, section 2).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.head_parts import Chained, HeadTarget, ahead, layer_of
from spsbench.heads.mlp import MlpNetwork, MlpShape, nth


class MlpStudent(Chained):
    """MLP speculator whose stages share their weights, as IBM's newer heads do.

    Initialised from the target's embeddings and output head if no wider than the target.
    """

    drafter = "mlp"
    rate = 1e-3
    network_class = MlpNetwork
    usual_depth = 3
    renamed = ("", "speculator.")
    sizes = (("stages", "count"), ("inner", "inner"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> MlpShape:
        width = layer_of(target.parts, None, "mlp").width
        return MlpShape(
            width=width,
            inner=options.inner or width,
            vocab=target.parts.vocab_size,
            count=self.depth,
            tied=True,
            scaled=True,
        )

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Let a head no wider than the target begin as projections of the target's rows.

        The projection keeps the principal directions of the rows.
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

    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, nn.Module]]:
        """Yield the state of each stage; stage i has read token j + 1 + i."""
        x = self.network.before(hidden)
        for i in range(depth):
            x = self.network.stage(i, x, ahead(tokens, 1 + i))
            yield x, nth(self.network.head, i)

    def config(self) -> dict[str, Any]:
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
