"""The needs that a drafter declares (`Plan`) and the context that provides for them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)

Made = TypeVar("Made")

CommonPass = Callable[[list[Any]], Sequence[Any]]
"""Maps the inputs of several texts to their results, in the same order."""

Together = Callable[[Hashable, Any, CommonPass], Any]
"""(kind, given, make) -> this text's part of `make`, as `DrafterContext.together` returns it."""


def alone(kind: Hashable, inputs: Any, make: CommonPass) -> Any:
    """Return the result of `make` for one text: the `Together` of a text in no batch."""
    return make([inputs])[0]


class Weights(Enum):
    """The meaning of `draft` for a drafter."""

    NONE = "none"  # nothing: it drafts from the text
    MODEL = "model"  # a causal language model, with the target's tokenizer or one it `translates`
    OWN = "own"  # a folder of tensors that the drafter reads itself
    HEAD = "head"  # a published head, in a format that is known: checked, and read by name


class Drawn(Enum):
    """The way in which the children of a node are drawn; it decides which verifiers are exact."""

    POINT = "point"  # by rule: argmax, a lookup, samples pruned by their value
    IID = "iid"  # independently from `Draft.probs`
    DISTINCT = "distinct"  # from `Draft.probs` without replacement


class Plan(NamedTuple):
    """The properties of a drafter that follow from its arguments, before anything is loaded."""

    drawn: Drawn
    tree: bool = False  # may its drafts branch?
    weights: Weights = Weights.NONE
    target: bool = False  # does it use parts of the target: embeddings, head, config?
    translates: bool = False  # may its model's tokenizer be another one than the target's?


class OwnWeights(NamedTuple):
    """A folder of tensors that a drafter reads itself."""

    folder: Path
    config: Mapping[str, Any]  # its config.json; empty without one
    tensors: Mapping[str, Tensor]  # by name, on the draft's device and in its dtype; `tensors[x]`
    # for one that is not there is an error that names the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """Parts of the target that a drafter may use and must not change. D is the model's width."""

    config: Any  # transformers' configuration of the text model
    vocab_size: int  # tokens; rows of the logits beyond are padding
    device: torch.device
    dtype: torch.dtype
    embed: nn.Module  # [m] tokens -> [m, D]
    lm_head: nn.Module  # [m, D] hidden states of the last layer -> [m, V] logits, and maybe padding
    norm: nn.Module | None = None  # after the last layer; None: it is not known

    @classmethod
    def of(cls, model: Any, vocab_size: int) -> Self:
        """Return the uncut parts of a transformers model; no `norm` if its decoder has none."""
        return cls(
            config=model.config.get_text_config(),
            vocab_size=vocab_size,
            device=model.device,
            dtype=model.dtype,
            embed=model.get_input_embeddings(),
            lm_head=model.get_output_embeddings(),
            norm=getattr(model.get_decoder(), "norm", None),
        )

    def head(self, hidden: Tensor) -> Tensor:
        """Map [m, D] hidden states of the last layer to [m, V] logits."""
        logits: Tensor = self.lm_head(hidden)
        return logits[..., : self.vocab_size]


@dataclass(frozen=True, slots=True)
class Variant:
    """The target with some layers skipped, which count from 0."""

    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class CachePart:
    """The rows of the target's cache that a draft by the target itself reads, one at least."""

    window: int  # newest tokens
    sinks: int  # first tokens of the text


class Cache(Protocol):
    """The keys and values of a drafter's own layers, rolled back like a model's."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Append `[1, heads, m, width]` to a layer and return all of its keys and values."""

    def keep(self, length: int, rows: Any = ()) -> None:
        """Keep the first `length` tokens, and after them those at `rows`."""


class DrafterContext(Protocol):
    """Models, weights and caches for a drafter. Using what the drafter's plan omits raises."""

    vocab_size: int
    tokenizer: Any  # the target's; None over tables
    constrained: bool  # is there a constraint on the text?
    vocabularies: Any  # `models.translation.vocabulary.Vocabularies` where there are two, else None

    def session(self) -> Any:
        """Open a session (`LM`) with the draft model; for `Weights.MODEL`."""

    def own(self) -> OwnWeights:
        """Return the drafter's own tensors; for `Weights.OWN`."""

    def head(self) -> Any:
        """Return a head's description and weights; for `Weights.HEAD`."""

    def network(self, make: Callable[[], Network]) -> Network:
        """Make the drafter's network once; the draft's engine packs its linear layers."""

    def target(self) -> TargetParts:
        """Return the parts of the target; for a plan with `target`."""

    def cache(self, most: int | None = None) -> Cache:
        """Make an empty cache for the drafter's own layers, of at most `most` tokens."""

    @property
    def together(self) -> Together:
        """Return what makes passes of one kind with the other texts of a batch; see `alone`."""

    def memory(self, make: Callable[[], Made]) -> Made:
        """Return the result of `make` for this cell, made once and kept between generations.

        It lasts as long as the models stay loaded, or until a benchmark begins.
        """

    def variant(self, variant: Variant) -> Any:
        """Open a session (`LM`) with the target less the layers in `variant`, with its own cache.

        The weights are shared with the target. For a plan with `target`.
        """

    def partial(self, part: CachePart) -> Any:
        """Open a session (`LM`) with the target over a copy of `part` of the target's own cache.

        Its `commit` copies what the target has read since. For a plan with `target`.
        """
