"""A head of EAGLE-1 and 2, from nothing; with more passes it is HASS's (arXiv 2401.15077)."""

from pathlib import Path
from typing import Any

import torch

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.eagle import EagleNetwork
from spsbench.models.heads.description import EagleShape
from spsbench.training.students.eagle_unroll import Unrolled
from spsbench.training.students.head_parts import begun, layer_config, layer_of, write_head


class EagleStudent(Unrolled):
    """Foretells the target's last hidden state; its logits are by the target's head.

    One pass is EAGLE's own training; three are HASS's harmonised context (arXiv 2408.15766).
    """

    drafter = "eagle"
    rate = 1e-3
    regresses = 10.0  # EAGLE weighs the feature 1 and the law 0.1

    def __init__(
        self, target: TargetParts, *, depth: int | None, inner: int | None, seed: int
    ) -> None:
        layer = layer_of(target, inner, "eagle")
        self._rows = EagleShape(layer=layer, fc_bias=False, vocab=target.vocab_size)
        network = EagleNetwork(self._rows, int(target.config.num_hidden_layers))
        begun(network, seed)
        with torch.no_grad():  # begins by repeating the feature
            network.fc.weight[:, layer.width :].add_(torch.eye(layer.width))
        network.to(target.device)
        super().__init__(network, target, depth or 1)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """As its authors write it, without a copy of the target's embeddings."""
        config: dict[str, Any] = {
            **layer_config(self._rows.layer, self._rows.vocab),
            "architectures": ["LlamaForCausalLM"],
            "bias": False,
        }
        tensors = {
            name.replace("stack.", "layers."): weight
            for name, weight in self.network.state_dict().items()
        }
        write_head(folder, config, tensors, dtype)
