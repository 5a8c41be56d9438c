"""Heads that draft from their own features: EAGLE, EAGLE-3, and a block of Falcon.

EAGLE heads are trained unrolled over the depth of a draft: pass d reads what pass d - 1 wrote, over
a cache of keys and values that grows by a pass.

Sources: EAGLE (arXiv 2401.15077); the training-time test of EAGLE-3 (arXiv 2503.01840, section
3.2); the harmonised context of HASS (arXiv 2408.15766, section 3.2); Falcon (arXiv 2412.12639).
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spsbench.extensions.training.batches import TeacherOutput, TextBatch
from spsbench.extensions.training.losses import feature
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.student import (
    HeadStudent,
    HeadTarget,
    StudentPrediction,
    draft_vocabulary,
    init_weights,
    layer_config,
    layer_of,
    select_continuation,
)
from spsbench.heads.eagle import EagleNetwork, EagleShape
from spsbench.heads.eagle3 import IDS, Eagle3Network, Eagle3Shape, default_features
from spsbench.heads.falcon import FalconNetwork, FalconShape
from spsbench.heads.network import HeadModule

SPECULATORS_VERSION = "0.3.0"  # version of the format of vllm-project/speculators


class UnrollCache:
    """Keys and values of layers, with gradients: one pass is kept as it is, more are joined."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *more: object
    ) -> tuple[Tensor, Tensor]:
        """Append a pass's keys and values, [1, heads, m, width]; return a layer's of all passes."""
        if layer_idx in self._layers:
            keys, values = self._layers[layer_idx]
            key_states = torch.cat([keys, key_states], 2)
            value_states = torch.cat([values, value_states], 2)
        self._layers[layer_idx] = key_states, value_states
        return key_states, value_states

    def keep(self, length: int, rows: object = ()) -> None:
        """Do nothing, since nothing is rolled back in training."""


def unroll_mask(
    texts: int, rows: int, depth: int, device: torch.device, window: int | None = None
) -> Tensor:
    """Return the mask of pass `depth`, [m, (depth + 1) * m] bool with m = texts * rows.

    Row t of a text reads a draft of `depth` tokens after row t - depth. It attends, in its own
    text, to rows of pass 0 up to t - depth, and in each later pass i to row t - depth + i; of them
    to the `window` newest rows alone (None: all), itself the first. True: it attends.
    """
    place = torch.arange(rows, device=device).repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(rows)
    same = text[:, None] == text
    apart = place[:, None] - place  # [m, m] distance from a key to the query
    same = same if window is None else same & (apart < window)
    blocks = [same & (apart >= depth)]
    blocks += [same & (apart == depth - i) for i in range(1, depth + 1)]
    return torch.cat(blocks, 1)


class EagleStudent(HeadStudent):
    """Head that predicts the target's last hidden state, under the target's output head.

    Row t of pass d predicts token t + 2, d tokens into a draft. One pass is EAGLE's own training,
    three are HASS's.
    """

    drafter = "eagle"
    rate = 1e-3
    regresses = 10.0  # weight of the feature regression: EAGLE weighs it 1 and the token loss 0.1
    network_class: ClassVar[type[HeadModule]] = EagleNetwork
    usual_depth = 1
    renamed = ("stack.", "layers.")

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> Any:
        layer = layer_of(target.parts, options.inner, self.drafter)
        return EagleShape(layer=layer, fc_bias=False, vocab=self.vocab)

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Set random weights by `seed`, and add the feature to what `fc` gives."""
        init_weights(self.network, seed)
        width = self.shape.layer.width
        self.network.fc.weight[:, width:].add_(torch.eye(width))

    def config(self) -> dict[str, Any]:
        return {
            **layer_config(self.shape.layer, self.shape.vocab),
            "architectures": ["LlamaForCausalLM"],
            "bias": False,
        }

    def predict(
        self, batch: TextBatch, output: TeacherOutput, depth: int
    ) -> Iterator[StudentPrediction]:
        """Yield `depth` predictions, a pass each.

        Number d, from 0, is of those rows of continuations that are 1 + d or later in their text.
        Each pass reads the features that the pass before it wrote. `extra` is the weighted feature
        loss of kinds that have one.
        """
        texts, length = batch.ids.shape
        rows, dtype = length - 1, next(self.network.parameters()).dtype
        hidden = [
            output.hidden[layer][:, :-1].flatten(0, 1).to(dtype) for layer in self.network.layers
        ]
        features = self.network.fuse(hidden)
        embedded = self.network.embed(batch.ids[:, 1:].flatten(), self.target.embed).to(dtype)
        device = features.device
        place = torch.arange(rows, device=device)
        places = self.network.rotary(place.repeat(texts), dtype)
        cache, last = UnrollCache(), output.hidden[-1]
        for d in range(depth):
            sees = unroll_mask(texts, rows, d, device, getattr(self.shape, "window", None))
            outputs = self.network.step(features, embedded, places, cache, sees)
            # row t predicts the token after row t + 1; a draft of d tokens has d rows before t
            ahead = (torch.arange(texts, device=device)[:, None] * length + place[d:] + 1).flatten()
            at, target_rows = select_continuation(batch, ahead)
            mine = outputs.view(texts, rows, -1)[:, d:].flatten(0, 1)[at]
            extra = None
            if self.regresses:
                extra = self.regresses * feature(mine, last.flatten(0, 1)[target_rows].to(dtype))
            yield StudentPrediction(target_rows, self.network.scores(mine, self.target_head), extra)
            by_text = outputs.view(texts, rows, -1)  # the next pass reads the row before
            features = nn.functional.pad(by_text[:, :-1], (0, 0, 1, 0)).flatten(0, 1)


class Eagle3Student(EagleStudent):
    """Head that reads three hidden states, over the commonest tokens of the texts."""

    drafter = "eagle3"
    rate = 2e-3
    regresses = 0.0
    network_class = Eagle3Network
    usual_depth = 4
    renamed = ("stack.0", "layers.0")
    sizes = (("features", "features"), ("draft_vocab", "draft_vocab"), ("inner", "layer.inner"))

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> Any:
        """Return the shape of a head over three hidden states; set its vocabulary, `chosen`."""
        layer = layer_of(target.parts, options.inner, "eagle3")
        self.chosen = draft_vocabulary(target.counts, options.draft_vocab)
        return Eagle3Shape(
            layer=layer,
            features=features_of(self.target_layers),
            target_width=layer.width,
            draft_vocab=len(self.chosen),
            vocab=self.vocab,
        )

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Set weights by `seed`; the output head is the target's rows of its vocabulary."""
        init_weights(self.network, seed)
        self.network.lm_head.weight.copy_(target.head[self.chosen])
        if len(self.chosen) < self.shape.vocab:
            self.ids = self.network.ids = self.chosen.to(target.parts.device)

    def config(self) -> dict[str, Any]:
        """Return a config.json of speculators; the usual features of a target are not named."""
        shape, layers = self.shape, self.target_layers
        usual = layers > 4 and shape.features == default_features(layers)
        return {
            **speculators_config("eagle3", self.target_name, self.depth),
            "architectures": ["Eagle3Speculator"],
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


def speculators_config(kind: str, target: str, depth: int) -> dict[str, Any]:
    """Return the keys that speculators' config.json has for any `kind`; `depth`: tokens drafted."""
    return {
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": depth}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
    }


def features_of(layers: int) -> tuple[int, ...]:
    """Return the paper's three hidden states; of a shallow target the first, middle and last."""
    default = default_features(layers)
    if 0 < default[0] < default[1] < default[2] < layers:
        return default
    return tuple(sorted({0, layers // 2, layers - 1}))


class FalconStudent(HeadStudent):
    """Falcon head, trained on blocks that end at every position of a text.

    Row j is slot s of the block that ends at row j + k - 1 - s; it sees that block and the text
    before, and predicts the feature of token j + k.
    """

    drafter = "falcon"
    rate = 2e-3
    network: FalconNetwork
    network_class = FalconNetwork
    usual_depth = 2  # and tokens of a block: the best of the paper's 2, 3 and 4 (table 5)
    renamed = ("stack.", "layers.")
    sizes = (("block", "block"), ("inner", "layer.inner"))
    regresses = 10.0  # the paper weighs the feature loss 1 and the token loss 0.1

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> FalconShape:
        self.most = self.depth
        layer = layer_of(target.parts, options.inner, "falcon")
        return FalconShape(layer=layer, block=self.depth, recurrent=True, vocab=self.vocab)

    def predict(
        self, batch: TextBatch, output: TeacherOutput, depth: int
    ) -> Iterator[StudentPrediction]:
        """Yield the predictions, with feature losses, of a block's first slots, `depth` at most."""
        (texts, length), dtype = batch.ids.shape, next(self.network.parameters()).dtype
        last, k, rows = output.hidden[-1].to(dtype), self.network.block, length - 1
        embedded = self.network.embed(batch.ids[:, 1:].flatten(), self.target.embed).to(dtype)
        by_time = (last[:, :-1].transpose(0, 1), embedded.view(texts, rows, -1).transpose(0, 1))
        lstm_rows, _ = self.network.rows(*by_time, self.network.start(texts))
        x = lstm_rows.transpose(0, 1).flatten(0, 1)
        place = torch.arange(rows, device=x.device).repeat(texts)
        text = torch.arange(texts, device=x.device).repeat_interleave(rows)
        context = self.network.append_kv(x, place, UnrollCache())
        for slot in range(min(depth, k)):
            sees = (text[:, None] == text) & (place <= place[:, None] + k - 1 - slot)
            features = self.network.predict(x, place, context, sees)
            whole = ((place >= slot) & (place + k - slot <= rows) & (place + k < length)).nonzero()
            predicted = whole[:, 0]
            at, target_rows = select_continuation(batch, (text * length + place + k)[predicted])
            mine = features[predicted[at]]
            extra = self.regresses * feature(mine, last.flatten(0, 1)[target_rows])
            yield StudentPrediction(target_rows, self.network.scores(mine, self.target_head), extra)

    def config(self) -> dict[str, Any]:
        """Return the config.json of a Falcon head, a format of this package."""
        return {
            **layer_config(self.shape.layer, self.shape.vocab),
            "architectures": ["FalconDraftModel"],
            "base_model_name_or_path": self.target_name,
            "bias": True,
            "k_mask": self.shape.block,
            "recurrence": "text",
        }
