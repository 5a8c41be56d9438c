"""A prediction layer (MTP) for a target, of the target's own decoder-layer class.

Source: FastMTP (arXiv 2509.18362): one layer for all depths, trained on the target's own texts. The
layer begins as a copy of the target's last one.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from spsbench.errors import UsageError
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.eagle import EagleStudent, speculators_config
from spsbench.extensions.training.students.student import HeadTarget, init_weights
from spsbench.heads.families import CUT_OUT
from spsbench.heads.mtp import MtpNetwork, MtpShape, new_shape, weights_from_zero


class MtpStudent(EagleStudent):
    """A prediction layer over the target's last hidden state, under the target's output head."""

    drafter = "mtp"
    rate = 2e-3
    regresses = 0.0
    network_class = MtpNetwork
    usual_depth = 4
    sizes = (("window", "window"),)

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> MtpShape:
        """Return the shape of a layer as the target's; set `layer_values`, its config, for files.

        UsageError: `inner` is given. DataError: no such layer can be made.
        """
        if options.inner is not None:
            raise UsageError(
                "`inner` with `kind` mtp: expected the target's own, of a copy of its last layer. "
                "Leave it out"
            )
        usual = PreTrainedConfig().to_dict().keys() - {"model_type"}  # what no layer is made of
        values = target.parts.config.to_dict()
        self.layer_values = {name: values[name] for name in values if name not in usual}
        return new_shape(self.layer_values, target.name)

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Copy the last target layer whose tensors all fit; other matrices are random by `seed`.

        The part of `fc` that reads the feature has the identity added. UsageError: no such layer.
        """
        network, width = self.network, self.shape.width
        network.layer.to_empty(device="cpu")  # a layer of transformers is made on `meta`
        init_weights(network, seed)
        if self.shape.layer is None and weights_from_zero(self.shape.config):
            for norm in (network.norm_embedded, network.norm_feature, network.norm):
                norm.weight.zero_()
        network.fc.weight[:, width:].add_(torch.eye(width))
        layer = getattr(network.layer, "layer", network.layer)
        shapes = {name: weight.shape for name, weight in layer.state_dict().items()}
        for source in reversed([*target.layers]):
            weights = source.state_dict()
            if {name: weight.shape for name, weight in weights.items()} == shapes:
                layer.load_state_dict(weights)
                return
        raise UsageError(
            f"no layer of {target.name} has the tensors of a prediction layer (`kind` mtp): "
            "expected one to begin with. Train another kind"
        )

    def tensors(self) -> dict[str, Tensor]:
        in_file = {parameter: pattern.replace("\\", "") for pattern, parameter in CUT_OUT}
        tensors = {}
        for name, weight in self.network.released().items():
            part, _, suffix = name.partition(".")
            tensors[f"mtp_layers.0.{in_file[f'{part}.']}{suffix}"] = weight
        return tensors

    def config(self) -> dict[str, Any]:
        return {
            **speculators_config("mtp", self.target_name, self.depth),
            "architectures": ["MTPDraftModel"],
            "num_nextn_predict_layers": 1,
            "transformer_layer_config": self.layer_values,
        }
