"""The needs of a drafter (`Plan`), and the context that provides for them where it is opened."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)

Made = TypeVar("Made")


class Weights(Enum):
    """What `--draft` means to a drafter."""

    NONE = "none"  # nothing: it drafts from the text
    MODEL = "model"  # a causal language model, with the target's tokenizer or one it `translates`
    OWN = "own"  # a folder of tensors that the drafter reads itself
    HEAD = "head"  # a published head, in a format that is known: checked, and read by name


class Drawn(Enum):
    """How the children of a node were drawn; it decides which verifiers are sound."""

    POINT = "point"  # by rule: argmax, a lookup, samples pruned by their value
    IID = "iid"  # independently from `Draft.probs`
    DISTINCT = "distinct"  # from `Draft.probs` without replacement


class Plan(NamedTuple):
    """What can be known of a drafter from its arguments alone, before anything is loaded."""

    drawn: Drawn
    tree: bool = False  # may its drafts branch?
    weights: Weights = Weights.NONE
    target: bool = False  # does it use parts of the target: embeddings, head, config?
    translates: bool = False  # may its model's tokenizer be another one than the target's?


class OwnWeights(NamedTuple):
    """A folder of a drafter's own."""

    folder: Path
    config: Mapping[str, Any]  # of its config.json; empty without one
    tensors: Mapping[str, Tensor]  # by name, on the draft's device and in its dtype; `tensors[x]`
    # of one that is not there is an error that names the folder


class HeadWeights(NamedTuple):
    """A head in a known format."""

    description: Any  # `models.heads.description.Description`: its family, shape and target
    tensors: Mapping[
        str, Tensor
    ]  # by parameter of the network, on the draft's device, in its dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """Parts of the target that a drafter may use and must not change. D is the model's width."""

    config: Any  # transformers' configuration of the text model
    vocab_size: int  # tokens; rows of the logits beyond are padding
    device: torch.device
    dtype: torch.dtype
    embed: Callable[[Tensor], Tensor]  # [m] tokens -> [m, D]
    head: Callable[[Tensor], Tensor]  # [m, D] hidden states of the last layer -> [m, V] logits


@dataclass(frozen=True, slots=True)
class Variant:
    """The target made cheaper: what is left out of it. Layers are numbered from 0."""

    layers: frozenset[int] = frozenset()  # whole
    attention: frozenset[int] = frozenset()  # layers of which only the attention is
    mlp: frozenset[int] = frozenset()  # and those of which only the other half is

    def __str__(self) -> str:
        parts = ("layers", self.layers), ("attention", self.attention), ("mlp", self.mlp)
        return "; ".join(f"{name} {'+'.join(map(str, sorted(n)))}" for name, n in parts if n)


class Cache(Protocol):
    """Keys and values of a drafter's own layers, rolled back like a model's."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Write `[1, heads, m, width]` after what a layer has; all keys and values of it."""

    def keep(self, length: int, rows: Any = ()) -> None:
        """Keep the first `length` tokens, and after them those at `rows`."""


class DrafterContext(Protocol):
    """Models, weights and caches for a drafter. Asking for what its plan does not name raises."""

    vocab_size: int
    tokenizer: Any  # the target's; None over tables
    vocabularies: Any  # `models.translation.vocabulary.Vocabularies` where there are two, else None

    def session(self) -> Any:
        """A session (`LM`) with the draft model; for `Weights.MODEL`."""

    def own(self) -> OwnWeights:
        """The drafter's own tensors; for `Weights.OWN`."""

    def head(self) -> HeadWeights:
        """A head's description and weights; for `Weights.HEAD`."""

    def network(self, make: Callable[[], Network]) -> Network:
        """The network over them, made once; its linear layers as the draft's engine has them."""

    def target(self) -> TargetParts:
        """Parts of the target; for a plan with `target`."""

    def cache(self, most: int | None = None) -> Cache:
        """An empty cache for layers of the drafter's own; `most` = tokens it will ever hold."""

    def memory(self, make: Callable[[], Made]) -> Made:
        """What `make` made for this cell when it was first asked: it outlives a generation.

        It is kept as long as the models stay loaded, or until a benchmark begins.
        """

    def variant(self, variant: Variant) -> Any:
        """A session (`LM`) with the target less what `variant` leaves out, over a cache of its own.

        Its weights are the target's, in memory once. For a plan with `target`.
        """
