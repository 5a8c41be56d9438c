"""Students: networks in training, their predictions, and what heads share.

A kind of head is a network, its shape, initial weights, and the format of its files.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.errors import UsageError
from spsbench.extensions.training.batches import TeacherOutput, TextBatch
from spsbench.extensions.training.options import HeadTraining
from spsbench.heads.export import flat_layer
from spsbench.heads.head import Head
from spsbench.heads.layers import LayerShape
from spsbench.heads.network import HeadModule, load_network
from spsbench.loop.drafter_context import TargetParts
from spsbench.pair.export import write_head


@dataclass(frozen=True, slots=True)
class StudentPrediction:
    """Prediction of a student for one depth."""

    rows: Tensor  # [N] rows of the batch that are predicted, all in the continuations of texts
    logits: Tensor  # [N, Vd] of the token after each row
    extra: Tensor | None = None  # [N] auxiliary loss of the student's kind, added to the user's


class Student(ABC):
    """A network in training, and its interface to the loop.

    Attributes:
        network: the network whose parameters are trained.
        depth: number of predictions that are trained.
        most: largest number of predictions, the tokens that a round may draft.
        ids: [Vd] the target's token of each column; None: the same vocabulary.
        drafter: kind of drafter that reads the result.
        rate: default learning rate.
    """

    network: nn.Module
    depth: int
    most: int
    ids: Tensor | None = None
    drafter: str
    rate: ClassVar[float]
    needs_target = True  # reads hidden states of the target

    @property
    def passes(self) -> int:
        """Return the layers, or passes over them, whose activations a gradient needs."""
        return self.depth

    @abstractmethod
    def predict(
        self, batch: TextBatch, output: TeacherOutput, depth: int
    ) -> Iterator[StudentPrediction]:
        """Yield up to `depth` predictions, from depth 0, each computed when asked for."""

    @abstractmethod
    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write a folder for `draft`, in the format of the kind."""

    def describe(self) -> dict[str, Any]:
        """Return sizes, for the model card."""
        return {"parameters": sum(p.numel() for p in self.network.parameters())}


def select_continuation(batch: TextBatch, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of those [m] `rows` that predict a continuation, and these rows."""
    at = batch.in_continuation[rows].nonzero()[:, 0]
    return at, rows[at]


class HeadTarget(NamedTuple):
    """The target of a head in training."""

    parts: TargetParts
    embedding: Tensor  # [V', D] rows of its input embeddings
    head: Tensor  # [V', D] rows of its output embeddings
    name: str  # for config.json
    counts: Tensor  # [V] how often each token occurs in the texts
    start: Head | None = None  # the head to start from
    layers: Sequence[nn.Module] = ()  # the target's decoder layers


class HeadStudent(Student):
    """A head in training, in the sizes of its target."""

    network: Any
    network_class: ClassVar[type[HeadModule]]
    usual_depth: ClassVar[int]  # where the user names none
    renamed: ClassVar[tuple[str, str]] = ("", "")  # beginning of parameters' names, that in files
    chosen: Tensor  # [Vd] tokens of the draft vocabulary, where a kind has one
    sizes: ClassVar[tuple[tuple[str, str], ...]] = ()  # name in the model card, shape's attribute

    def __init__(self, options: HeadTraining, target: HeadTarget) -> None:
        self.target, self.target_name = target.parts, target.name
        self.vocab = target.parts.vocab_size
        self.target_layers = int(target.parts.config.num_hidden_layers)
        self.depth, self.most = options.depth or self.usual_depth, 16
        self.shape: Any = self.shape_of(options, target)
        if target.start is None:
            self.network = type(self).network_class(self.shape, self.target_layers)
            with torch.no_grad():
                self.initialise(target, options.seed)
        else:
            self.shape = target.start.shape
            network = load_network(target.start, target.parts)
            self.network, self.ids = network.float().requires_grad_(True), network.ids
            self.chosen = torch.arange(self.vocab) if network.ids is None else network.ids
        self.network.to(target.parts.device)

    def target_head(self, rows: Tensor) -> Tensor:
        """Return the target's logits of [..., H] hidden states of any dtype, in that dtype."""
        return self.target.head(rows.to(self.target.dtype)).to(rows.dtype)

    @abstractmethod
    def shape_of(self, options: HeadTraining, target: HeadTarget) -> Any:
        """Return the shape of a new network; UsageError: the target or an option does not fit."""

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Set the weights of the new network in place; it is called without gradients."""
        init_weights(self.network, seed)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the config.json of the head's format."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the network's own weights, not copied, by their names in the head's format."""
        prefix, file_prefix = self.renamed
        return {
            file_prefix + name.removeprefix(prefix) if name.startswith(prefix) else name: weight
            for name, weight in self.network.state_dict().items()
        }

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        write_head(folder, self.config(), self.tensors(), dtype)

    def describe(self) -> dict[str, Any]:
        sizes = {name: attrgetter(path)(self.shape) for name, path in self.sizes}
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in sizes.items()}
        return {**super().describe(), **plain}


def layer_of(target: TargetParts, inner: int | None, kind: str) -> LayerShape:
    """Return the shape of a Llama layer in the target's width, as like the target's as may be.

    `inner` is the width of its MLP (None: the target's), `kind` the head's, for the message.
    UsageError: the target states no width, or no heads of attention.
    """
    config = target.config
    width, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    if not width or not heads:
        raise UsageError(
            f"a head for a {config.model_type} (`kind` {kind}): expected a target with a hidden "
            "size and heads of attention. Train a draft model: sps train draft"
        )
    stated = getattr(config, "head_dim", None) or width // heads
    head_dim = stated if stated % 2 == 0 else stated + 1
    head_count = max(1, width // head_dim)
    group = max(1, heads // (getattr(config, "num_key_value_heads", None) or heads))
    rope = getattr(config, "rope_parameters", None) or {}
    return LayerShape(
        width=width,
        inner=inner or getattr(config, "intermediate_size", None) or 4 * width,
        heads=head_count,
        kv_heads=next(n for n in range(max(1, head_count // group), 0, -1) if head_count % n == 0),
        head_dim=head_dim,
        eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
        positions=int(getattr(config, "max_position_embeddings", None) or 2048),
    )


def layer_config(shape: LayerShape, vocab: int) -> dict[str, Any]:
    """Return the config.json of a Llama with one layer of `shape`."""
    return {**flat_layer(shape), "num_hidden_layers": 1, "vocab_size": vocab}


SPREAD = 0.02


@torch.no_grad()
def init_weights(network: nn.Module, seed: int) -> None:
    """Initialise all weights in place by `seed`: norms are 1, biases 0, matrices normal.

    Matrices deviate by `SPREAD` in `o_proj` and `down_proj`, else by the root of 1 / inputs.
    """
    draw = torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        if weight.ndim < 2:
            weight.fill_(1.0 if "norm" in name else 0.0)
            continue
        spread = SPREAD if "o_proj" in name or "down_proj" in name else weight.shape[1] ** -0.5
        numbers = torch.randn(weight.shape, generator=draw, dtype=torch.float32) * spread
        weight.copy_(numbers.to(weight))


DEFAULT_DRAFT_VOCAB = 32_000


def draft_vocabulary(counts: Tensor, size: int | None) -> Tensor:
    """Return [Vd] the commonest tokens in ascending order, on the host; ties by id.

    `counts` [V] is how often each token of the target occurs in the texts. `size` None: 32,000, or
    all tokens if fewer. UsageError: too large a size.
    """
    if size is not None and size > len(counts):
        raise UsageError(f"`draft_vocab` is {size}: expected 1..{len(counts)}, the target's tokens")
    chosen = counts.argsort(descending=True, stable=True)[: size or DEFAULT_DRAFT_VOCAB]
    return torch.sort(chosen.cpu()).values
