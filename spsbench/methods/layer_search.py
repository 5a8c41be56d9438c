"""A search for the layers that a target can skip when it drafts for itself, on its own texts.

For each set of skipped layers, one teacher-forced pass over the texts gives the acceptance rate
alpha of the draft, the mean of sum_x min(p, q): no text is generated. Layers are skipped one after
the other, each time the candidate that costs least alpha. (Draft & Verify, arXiv 2309.08168,
searches with measured time a token instead, by Bayesian optimisation.)
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.session.layer_skip import layers_of, view
from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Variant
from spsbench.loop.types import LM, Engine

Warping = Callable[[Tensor], Tensor]
Cost = Callable[[Variant], float]
"""Return the cost of a drafted token, in passes of the target over one token."""

MAX_K = 8  # the largest of `Skip.gain`


class Text(NamedTuple):
    """A prompt with the target's output."""

    tokens: Sequence[int]
    prompt: int  # tokens of it that are the prompt's


class Skip(NamedTuple):
    """A set of skipped layers with its acceptance rate, cost and gain."""

    variant: Variant
    alpha: float  # mean of sum_x min(p, q) over the output's tokens
    cost: float  # of a drafted token, in passes of the target over one
    gain: float  # speed-up over ArS that follows from these at K, a pass over K + 1 costing one
    k: int  # of that K the best

    def __str__(self) -> str:
        """Format the set as a drafter's spec."""
        kinds = zip(("skip", "attention", "mlp"), _sets(self.variant), strict=True)
        options = [f"{name}={'+'.join(map(str, sorted(n)))}" for name, n in kinds if n]
        return f"self:{','.join(options if self.variant.layers else ['skip=none', *options])}"


class Bench:
    """A target's laws along texts, against which drafts with skipped layers are measured.

    Args:
        model: prepared by `engine`.
        texts: with an output each.
        warp: of target and draft.
        vocab_size: rows of the logits that are tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        engine: Engine,
        texts: Sequence[Text],
        warp: Warping,
        vocab_size: int,
    ) -> None:
        if not any(len(text.tokens) > text.prompt for text in texts):
            raise UsageError("texts without an output: expected some. Let the target write first")
        self.model, self._engine, self._warp, self._size = model, engine, warp, vocab_size
        self._texts = [text for text in texts if len(text.tokens) > text.prompt]
        self._laws = [self._along(model, text) for text in self._texts]

    def alpha(self, variant: Variant) -> float:
        """Return the acceptance rate of `variant` as a draft of the whole model."""
        model = view(self.model, variant)
        shared, slots = 0.0, 0
        for text, q in zip(self._texts, self._laws, strict=True):
            shared += float(torch.minimum(self._along(model, text), q).sum())
            slots += len(q)
        return shared / slots

    def _along(self, model: PreTrainedModel, text: Text) -> Tensor:
        """Return [output, V], the laws of the output's tokens."""
        lm: LM = self._engine.session(model, vocab_size=self._size)
        tokens = torch.tensor(text.tokens[:-1], dtype=torch.int64)
        lm.append(tokens[: text.prompt - 1], keep=0)
        return self._warp(
            lm.append(tokens[text.prompt - 1 :], len(text.tokens) - text.prompt).logits
        )


def search(
    bench: Bench,
    *,
    sublayers: bool = False,
    candidates: int = 4,
    cost: Cost | None = None,
) -> Iterator[Skip]:
    """Yield the best set found of one skipped part, of two, and so on, as each is found.

    Args:
        bench: of the target.
        sublayers: leave out attention and mlp apart, not whole layers.
        candidates: parts that are tried for each set: those that cost least when left out alone.
        cost: measured; default: the share of the weights that are read.
    """
    cost = cost or share_of_weights(bench.model)
    *_, layers = layers_of(bench.model)
    parts = list(parts_of(len(layers), sublayers))
    alone = {part: bench.alpha(part) for part in parts}
    left = sorted(parts, key=lambda part: -alone[part])
    chosen = Variant()
    while len(left) > 1:
        tried = {joined(chosen, part): part for part in left[:candidates]}
        tried = {variant: part for variant, part in tried.items() if is_left(variant, len(layers))}
        if not tried:
            return
        alphas = {variant: bench.alpha(variant) for variant in tried}
        chosen = max(alphas, key=alphas.__getitem__)
        left.remove(tried[chosen])
        yield worth(chosen, alphas[chosen], cost(chosen))


def best(skips: Sequence[Skip]) -> Skip:
    """Return the set with the greatest expected gain.

    Raises:
        UsageError: there is none.
    """
    if not skips:
        raise UsageError("a model of one layer: expected one that has layers to spare")
    return max(skips, key=lambda skip: skip.gain)


def worth(variant: Variant, alpha: float, cost: float) -> Skip:
    """Return the gain of the best K: (1 + a + ... + a^K) / (K c + 1) (Leviathan et al., 3.3)."""
    gains = {k: sum(alpha**i for i in range(k + 1)) / (k * cost + 1) for k in range(1, MAX_K + 1)}
    k = max(gains, key=gains.__getitem__)
    return Skip(variant, alpha, cost, gains[k], k)


def parts_of(count: int, sublayers: bool) -> Iterator[Variant]:
    """Return every part of `count` layers that can be skipped alone."""
    for index in range(count):
        if sublayers:
            yield Variant(attention=frozenset({index}))
            yield Variant(mlp=frozenset({index}))
        else:
            yield Variant(frozenset({index}))


def joined(one: Variant, other: Variant) -> Variant:
    """Skip both variants' parts; a layer with both halves skipped is skipped as a whole."""
    layers, attention, mlp = (
        mine | its for mine, its in zip(_sets(one), _sets(other), strict=True)
    )
    layers |= attention & mlp
    return Variant(layers, attention - layers, mlp - layers)


def is_left(variant: Variant, count: int) -> bool:
    """Return whether any layer with a cache is left."""
    return len(variant.layers | variant.attention) < count


def share_of_weights(model: PreTrainedModel) -> Cost:
    """Return the numbers that a pass reads as a share of the whole model's."""
    whole = weights_read(model)

    def share(variant: Variant) -> float:
        return weights_read(view(model, variant)) / whole

    return share


def weights_read(model: nn.Module) -> int:
    """Count the numbers of all parameters except lookup tables."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    heads = {
        id(weight)
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    sizes = {id(weight): weight.numel() for weight in model.parameters()}
    return sum(size for key, size in sizes.items() if key in heads or key not in tables)


def _sets(variant: Variant) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    return variant.layers, variant.attention, variant.mlp
