"""An EAGLE-1 or EAGLE-2 head, trained from scratch; with more passes, HASS.

Sources: EAGLE (arXiv 2401.15077), HASS (arXiv 2408.15766).
"""

from pathlib import Path
from typing import Any

import torch

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.eagle import EagleNetwork
from spsbench.models.heads.description import EagleShape
from spsbench.training.students.eagle_unroll import Unrolled
from spsbench.training.students.head_parts import begun, layer_config, layer_of, write_head


class EagleStudent(Unrolled):
    """Head that predicts the target's last hidden state, under the target's output head.

    One pass is EAGLE's own training; three are HASS's harmonised context (arXiv 2408.15766).
    """

    drafter = "eagle"
    rate = 1e-3
    regresses = 10.0  # EAGLE weighs the feature loss 1 and the token loss 0.1

    def __init__(
        self, target: TargetParts, *, depth: int | None, inner: int | None, seed: int
    ) -> None:
        layer = layer_of(target, inner, "eagle")
        self._rows = EagleShape(layer=layer, fc_bias=False, vocab=target.vocab_size)
        network = EagleNetwork(self._rows, int(target.config.num_hidden_layers))
        begun(network, seed)
        with torch.no_grad():  # initialised to repeat the feature
            network.fc.weight[:, layer.width :].add_(torch.eye(layer.width))
        network.to(target.device)
        super().__init__(network, target, depth or 1)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the head in its authors' format, without the target's embeddings."""
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
