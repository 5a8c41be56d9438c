"""Parts that students of heads share: layers in the target's sizes, vocabularies, and files."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.errors import UsageError
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.student import (
    Batch,
    Prediction,
    Student,
    TeacherOutput,
    select_continuation,
)
from spsbench.heads.export import flat_layer
from spsbench.heads.head import Head
from spsbench.heads.layers import LayerShape
from spsbench.heads.network import HeadModule, load_network
from spsbench.loop.drafter_context import TargetParts
from spsbench.pair.export import write_head

SPREAD = 0.02


def layer_of(target: TargetParts, inner: int | None, kind: str) -> LayerShape:
    """Return the shape of a Llama layer in the target's width."""
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
    shared = getattr(config, "num_key_value_heads", None) or heads
    group = max(1, heads // shared)
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


def head_of(target: TargetParts) -> Callable[[Tensor], Tensor]:
    """Return the target's output head, for [..., H] rows of another dtype."""

    def logits(rows: Tensor) -> Tensor:
        return target.head(rows.to(target.dtype)).to(rows.dtype)

    return logits


def layer_config(shape: LayerShape, vocab: int) -> dict[str, Any]:
    """Return the config.json of a Llama with one layer of `shape`."""
    return {**flat_layer(shape), "num_hidden_layers": 1, "vocab_size": vocab}


@torch.no_grad()
def begun(network: nn.Module, seed: int) -> None:
    """Initialise weights: normal, smaller at the end of a sublayer; biases are 0."""
    draw = torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        if weight.ndim < 2:
            weight.fill_(1.0 if "norm" in name else 0.0)
            continue
        spread = SPREAD if "o_proj" in name or "down_proj" in name else weight.shape[1] ** -0.5
        numbers = torch.randn(weight.shape, generator=draw, dtype=torch.float32) * spread
        weight.copy_(numbers.to(weight))


USUAL = 32_000


def draft_vocabulary(counts: Tensor, size: int | None) -> Tensor:
    """Return [Vd] the commonest tokens in ascending order, on the host; ties by id.

    Args:
        counts: [V] how often each token of the target occurs in the texts.
        size: size of the vocabulary; None: 32,000, or all tokens if fewer.
    """
    check_draft_vocab(size, len(counts))
    chosen = counts.argsort(descending=True, stable=True)[: size or USUAL]
    return torch.sort(chosen.cpu()).values


def check_draft_vocab(size: int | None, vocab: int) -> None:
    """Refuse a draft vocabulary larger than the target's."""
    if size is not None and size > vocab:
        raise UsageError(f"`draft_vocab` is {size}: expected 1..{vocab}, the target's tokens")


class HeadTarget(NamedTuple):
    """The target of a head in training."""

    parts: TargetParts
    embedding: Tensor  # [V', D] rows of its input embeddings
    head: Tensor  # [V', D] rows of its output embeddings
    name: str  # for config.json
    counts: Tensor  # [V] how often each token occurs in the texts
    start: Head | None = None  # the head to start from


class HeadStudent(Student):
    """A head in training, in the sizes of its target.

    A family has a network and its shape, initial weights, and the format of its files.

    Args:
        options: settings of the training.
        target: the target that the head learns from.
    """

    network: Any
    network_class: ClassVar[type[HeadModule]]
    usual_depth: ClassVar[int]  # where the user names none
    renamed: ClassVar[tuple[str, str]] = ("", "")  # beginning of parameters' names, that in files
    chosen: Tensor  # [Vd] tokens of the draft vocabulary, where a kind has one
    sizes: ClassVar[tuple[tuple[str, str], ...]] = ()  # name in the model card, shape's attribute

    def __init__(self, options: HeadTraining, target: HeadTarget) -> None:
        self.target, self.target_name = target.parts, target.name
        self.target_head = head_of(target.parts)
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
            self.chosen = (
                torch.arange(target.parts.vocab_size) if network.ids is None else network.ids
            )
        self.network.to(target.parts.device)

    @abstractmethod
    def shape_of(self, options: HeadTraining, target: HeadTarget) -> Any:
        """Return the shape of the network."""

    def initialise(self, target: HeadTarget, seed: int) -> None:
        """Set the weights of the new network."""
        begun(self.network, seed)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the config.json of the head's format."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in the head's format."""
        prefix, file_prefix = self.renamed
        weights = self.network.state_dict().items()
        return {
            file_prefix + name.removeprefix(prefix) if name.startswith(prefix) else name: weight
            for name, weight in weights
        }

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        write_head(folder, self.config(), self.tensors(), dtype)

    def reads(self, layers: int) -> Sequence[int]:
        """Return the last layer."""
        return (layers,)

    def describe(self) -> dict[str, Any]:
        sizes = {name: attrgetter(path)(self.shape) for name, path in self.sizes}
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in sizes.items()}
        return {**super().describe(), **plain}


class Chained(HeadStudent):
    """Heads that predict several tokens from the target's last hidden state.

    From hidden state j and the tokens after it, row j of pass d predicts token j + 2 + d of a text,
    which is the target of row j + 1 + d of the batch.
    """

    def __init__(self, options: HeadTraining, target: HeadTarget) -> None:
        super().__init__(options, target)
        self.most = self.depth

    @abstractmethod
    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
        """Yield for each depth a state [B, T, .] and the projection to logits.

        Args:
            hidden: [B, T, D] last hidden states of the target.
            tokens: [B, T] tokens of the text; 0 beyond its end.
            depth: number of states.
        """

    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        texts, length = batch.ids.shape
        hidden = lesson.hidden[-1].to(next(self.network.parameters()).dtype)
        first = torch.arange(texts, device=hidden.device)[:, None] * length
        for d, (state, head) in enumerate(self.states(hidden, batch.ids, depth)):
            place = torch.arange(max(length - 1 - d, 0), device=hidden.device)
            at, target_rows = select_continuation(batch, (first + place + 1 + d).flatten())
            mine = state[:, : len(place)].flatten(0, 1)[at]
            yield Prediction(target_rows, head(mine))


def ahead(tokens: Tensor, count: int) -> Tensor:
    """Return [B, T] the tokens `count` positions later; 0 beyond the end."""
    return nn.functional.pad(tokens[:, count:], (0, count))


SPECULATORS_VERSION = "0.3.0"  # version of the format


def speculator(kind: str, architecture: str, target: str, k: int) -> dict[str, Any]:
    """Return the common keys of a config.json of vllm-project/speculators."""
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
    }
