"""An EAGLE-3 head, trained from scratch; its output head is initialised from the target's.

Source: EAGLE-3 (arXiv 2503.01840).
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.eagle3 import Eagle3Network
from spsbench.models.heads.description import Eagle3Shape
from spsbench.models.heads.formats.eagle3 import IDS, default_features
from spsbench.training.students.eagle_unroll import Unrolled
from spsbench.training.students.head_parts import (
    begun,
    draft_vocabulary,
    layer_config,
    layer_of,
    speculator,
    write_head,
)

DEPTH = 4


class Eagle3Student(Unrolled):
    """Head that reads three hidden states, over the commonest tokens of the texts."""

    drafter = "eagle3"
    rate = 2e-3

    def __init__(
        self,
        target: TargetParts,
        head: Tensor,
        name: str,
        counts: Tensor,
        *,
        depth: int | None,
        draft_vocab: int | None,
        inner: int | None,
        seed: int,
    ) -> None:
        """Initialise a head.

        Args:
            target: embeddings, output head and configuration of the target.
            head: [V', D] rows of the target's output embeddings.
            name: name of the target, for config.json.
            counts: [V] how often each token occurs in the texts.
            depth: number of trained passes.
            draft_vocab: size of the head's vocabulary, the commonest tokens.
            inner: width of the inner layer.
            seed: seed of the weights.
        """
        vocab = target.vocab_size
        layers = int(target.config.num_hidden_layers)
        layer = layer_of(target, inner, "eagle3")
        ids = draft_vocabulary(counts, draft_vocab)
        shape = Eagle3Shape(
            layer=layer,
            features=features_of(layers),
            target_width=layer.width,
            draft_vocab=len(ids),
            vocab=vocab,
        )
        network = Eagle3Network(shape)
        begun(network, seed)
        with torch.no_grad():
            network.lm_head.weight.copy_(head[ids])
        network.to(target.device)
        network.ids = None if len(ids) == vocab else ids.to(target.device)
        super().__init__(network, target, depth or DEPTH)
        self._name, self._layers, self._rows = name, layers, shape

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the head in the format of vllm-project/speculators.

        Layer ids are omitted where they are the format's defaults.
        """
        shape, network = self._rows, self.network
        usual = self._layers > 4 and shape.features == default_features(self._layers)
        config: dict[str, Any] = {
            **speculator("eagle3", "Eagle3Speculator", self._name, self.depth),
            "draft_vocab_size": shape.draft_vocab,
            "norm_before_residual": False,
            "norm_output": False,
            "target_hidden_size": shape.target_width,
            IDS: None if usual else list(shape.features),
            "transformer_layer_config": layer_config(shape.layer, shape.vocab),
        }
        tensors = {
            name.replace("stack.0", "layers.0"): weight
            for name, weight in network.state_dict().items()
        }
        ids = self.ids
        if ids is not None:
            mask = torch.zeros(shape.vocab, dtype=torch.bool)
            mask[ids.cpu()] = True
            tensors |= {"d2t": ids.cpu() - torch.arange(len(ids)), "t2d": mask}
        write_head(folder, config, tensors, dtype)

    def describe(self) -> dict[str, Any]:
        """Return the sizes of the head and the layers that it reads."""
        shape = self._rows
        return {
            **super().describe(),
            "features": list(shape.features),
            "draft_vocab": shape.draft_vocab,
            "inner": shape.layer.inner,
        }


def features_of(layers: int) -> tuple[int, ...]:
    """Return the paper's three hidden states, or three others of a shallow target."""
    found = default_features(layers)
    if 0 < found[0] < found[1] < found[2] < layers:
        return found
    return tuple(sorted({0, layers // 2, layers - 1}))
