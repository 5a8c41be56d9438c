"""An EAGLE-3 head, trained from scratch; its output head is initialised from the target's.

Source: EAGLE-3 (arXiv 2503.01840).
"""

from typing import Any

import torch
from torch import Tensor

from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.eagle_unroll import Unrolled
from spsbench.extensions.training.students.head_parts import (
    HeadTarget,
    begun,
    draft_vocabulary,
    layer_config,
    layer_of,
    speculator,
)
from spsbench.heads.eagle3 import IDS, Eagle3Network, Eagle3Shape, default_features


class Eagle3Student(Unrolled):
    """Head that reads three hidden states, over the commonest tokens of the texts."""

    drafter = "eagle3"
    rate = 2e-3
    network_class = Eagle3Network
    usual_depth = 4
    renamed = ("stack.0", "layers.0")
    sizes = (("features", "features"), ("draft_vocab", "draft_vocab"), ("inner", "layer.inner"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> Eagle3Shape:
        layer, vocab = layer_of(target.parts, options.inner, "eagle3"), target.parts.vocab_size
        self.chosen = draft_vocabulary(target.counts, options.draft_vocab)
        return Eagle3Shape(
            layer=layer,
            features=features_of(self.target_layers),
            target_width=layer.width,
            draft_vocab=len(self.chosen),
            vocab=vocab,
        )

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Let the output head begin as the target's rows of its vocabulary."""
        begun(self.network, seed)
        self.network.lm_head.weight.copy_(target.head[self.chosen])
        if len(self.chosen) < self.shape.vocab:
            self.ids = self.network.ids = self.chosen.to(target.parts.device)

    def config(self) -> dict[str, Any]:
        shape, layers = self.shape, self.target_layers
        usual = layers > 4 and shape.features == default_features(layers)
        return {
            **speculator("eagle3", "Eagle3Speculator", self.target_name, self.depth),
            "draft_vocab_size": shape.draft_vocab,
            "norm_before_residual": False,
            "norm_output": False,
            "target_hidden_size": shape.target_width,
            IDS: None if usual else list(shape.features),
            "transformer_layer_config": layer_config(shape.layer, shape.vocab),
        }

    def tensors(self) -> dict[str, Tensor]:
        if self.ids is None:
            return super().tensors()
        mask = torch.zeros(self.shape.vocab, dtype=torch.bool)
        mask[self.chosen] = True
        offsets = self.chosen - torch.arange(len(self.chosen))
        return {**super().tensors(), "d2t": offsets, "t2d": mask}


def features_of(layers: int) -> tuple[int, ...]:
    """Return the paper's three hidden states, or three others of a shallow target."""
    default = default_features(layers)
    if 0 < default[0] < default[1] < default[2] < layers:
        return default
    return tuple(sorted({0, layers // 2, layers - 1}))
