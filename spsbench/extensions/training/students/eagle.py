"""An EAGLE-1 or EAGLE-2 head, trained from scratch; with more passes, HASS.

Sources: EAGLE (arXiv 2401.15077), HASS (arXiv 2408.15766).
"""

from typing import Any

import torch

from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.eagle_unroll import Unrolled
from spsbench.extensions.training.students.head_parts import (
    HeadTarget,
    begun,
    layer_config,
    layer_of,
)
from spsbench.heads.eagle import EagleNetwork, EagleShape


class EagleStudent(Unrolled):
    """Head that predicts the target's last hidden state, under the target's output head.

    One pass is EAGLE's own training; three are HASS's harmonised context (arXiv 2408.15766).
    """

    network: EagleNetwork
    drafter = "eagle"
    rate = 1e-3
    regresses = 10.0  # EAGLE weighs the feature loss 1 and the token loss 0.1
    network_class = EagleNetwork
    usual_depth = 1
    renamed = ("stack.", "layers.")

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> EagleShape:
        layer = layer_of(target.parts, options.inner, "eagle")
        return EagleShape(layer=layer, fc_bias=False, vocab=target.parts.vocab_size)

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Let the head begin by repeating the feature."""
        begun(self.network, seed)
        width = self.shape.layer.width
        self.network.fc.weight[:, width:].add_(torch.eye(width))

    def config(self) -> dict[str, Any]:
        return {
            **layer_config(self.shape.layer, self.shape.vocab),
            "architectures": ["LlamaForCausalLM"],
            "bias": False,
        }
