"""Passes over several tokens: does each token get the logits that it has alone.

A way to feed tokens is compared with tokens that are fed alone: how far logits are apart, how many
likeliest tokens change, and the first module whose equal inputs give different outputs. `state`
asks it of a model that keeps states, in transformers and in our session; `rows` of any model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.audit.pass_report import SMALL, Comparison, Difference
from spsbench.engines.eager import Eager, ordinary, rows_of
from spsbench.engines.session.states import STATES, feed, stock_cache, zero_states

PAST = 11  # tokens before those that are compared
SIZES = (2, 3, 4, 5, 6, 7, 8)  # tokens of a pass
TOKENS = 24  # compared for each size
OF_ROUNDING = 1e-3  # of the deviation of logits: what rounding to float32 explains


class Feeder(Protocol):
    """A text that is fed in passes: the cache is a parameter of the way."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Feed `tokens` [n] and return their logits [n, V]."""


Open = Callable[[Tensor], Feeder]
"""From the tokens of a past, which it feeds, to what goes on from there."""


class Recorder:
    """Inputs and outputs of the modules of a model, by name, in the order in which they end."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._calls: dict[str, list[tuple[Tensor | None, Tensor]]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the calls within the block."""
        handles = [
            module.register_forward_hook(self._note, with_kwargs=True) for module in self._names
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        output, values = first_tensor([result]), [*args, *kwargs.values()]
        if output is None:
            return
        hidden = first_tensor([kwargs.get("hidden_states"), *values])
        copied = None if hidden is None else hidden.clone()
        self._calls.setdefault(self._names[module], []).append((copied, output.clone()))

    def rows(self, name: str, rows: slice) -> tuple[Tensor | None, Tensor] | None:
        """Return rows of the input and output [1, n, ...] of a module; None: it has no such."""
        calls = self._calls.get(name, ())
        outputs = [output for _, output in calls if output.ndim > 2 and output.shape[0] == 1]
        inputs = [x for x, _ in calls if x is not None and x.ndim > 2 and x.shape[0] == 1]
        if not outputs or len({x.shape[2:] for x in outputs}) > 1:
            return None
        whole = len(inputs) == len(outputs) and len({x.shape[2:] for x in inputs}) == 1
        hidden = torch.cat(inputs, dim=1)[:, rows] if whole else None
        return hidden, torch.cat(outputs, dim=1)[:, rows]

    @property
    def names(self) -> list[str]:
        """Return the modules that were called, by where their first call ended."""
        return list(self._calls)


def first_tensor(values: Sequence[Any]) -> Tensor | None:
    """Return the first tensor of numbers in `values`, or in a tuple or mapping there."""
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
        if isinstance(value, tuple | list) and (inner := first_tensor(value)) is not None:
            return inner
    return None


def first_difference(
    model: nn.Module, alone: Recorder, block: Recorder, count: int, share: float
) -> tuple[str, str, float]:
    """Return the first module that makes another output of equal inputs, its class and by how much.

    The block's rows are its last `count`, since a pass that was taken back may precede them.
    `share`: of the deviation of its outputs, what counts as equal.
    """
    for name in alone.names:
        one, other = alone.rows(name, slice(count)), block.rows(name, slice(-count, None))
        if one is None or other is None or one[1].shape != other[1].shape:
            continue
        if one[0] is None or other[0] is None or apart(one[0], other[0], share):
            continue
        if by := apart(one[1], other[1], share):
            return name, type(model.get_submodule(name)).__name__, by
    return "", "", 0.0


def apart(one: Tensor, other: Tensor, share: float) -> float:
    """Return the largest difference, 0 where it is within a share of the deviation of `one`."""
    gap = float((one.float() - other.float()).abs().max())
    return gap if gap > share * float(one.float().std(correction=0)) else 0.0


@torch.inference_mode()
def compare(
    model: PreTrainedModel,
    way: str,
    open_alone: Open,
    open_block: Open,
    sizes: Sequence[int] | None = None,
    ignores: Callable[[int], bool] = lambda size: False,
) -> list[Comparison]:
    """Compare passes of some sizes with tokens that are fed alone.

    Args:
        model: run by both ways.
        way: in words.
        open_alone: feeds tokens one at a time.
        open_block: feeds passes of `sizes` tokens.
        sizes: default `SIZES`.
        ignores: whether a pass of so many tokens does not read the states before it.
    """
    sizes, text = sizes or SIZES, ordinary(rows_of(model), PAST + TOKENS)
    past, following = text[:PAST], text[PAST:]
    recorded = Recorder(model)
    going = open_alone(past)
    with recorded.running():
        rows = [going(token[None]) for token in following[: max(sizes)]]
    alone = torch.cat([*rows, *(going(token[None]) for token in following[max(sizes) :])]).float()
    spread, comparisons = float(alone.std()), []
    for size in sizes:
        block, going = Recorder(model), open_block(past)
        with block.running():
            rows = [going(following[:size])]
        rows += [going(following[start : start + size]) for start in range(size, TOKENS, size)]
        logits = torch.cat(rows).float()
        gap = float((logits - alone).abs().max())
        flips = int((logits.argmax(-1) != alone.argmax(-1)).sum())
        kind = Difference.NONE if gap == 0 else Difference.ROUNDING
        if gap > OF_ROUNDING * spread:
            kind = Difference.PAST_IGNORED if ignores(size) else Difference.TWO_LAWS
        share = 0.0 if kind in SMALL else OF_ROUNDING
        where = first_difference(model, recorded, block, size, share) if gap else ("", "", 0.0)
        dtype = str(model.dtype).removeprefix("torch.")
        result = Comparison(way, dtype, size, gap, spread, flips, TOKENS, kind, *where)
        comparisons.append(result)
    return comparisons


def over_stock(model: PreTrainedModel) -> Open:
    """Feed as transformers does, over its own cache; the past is one pass."""

    def open_(past: Tensor) -> Feeder:
        cache, length = stock_cache(model), len(past)
        feed(model, past, cache, 1)

        def going(tokens: Tensor) -> Tensor:
            nonlocal length
            logits: Tensor = feed(model, tokens, cache, len(tokens), length).logits[0]
            length += len(tokens)
            return logits

        return going

    return open_


def over_session(model: PreTrainedModel, engine: Any = None) -> Open:
    """Feed by a session of an engine; before each pass one of other tokens is taken back."""

    def open_(past: Tensor) -> Feeder:
        lm = (engine or Eager()).session(model)
        lm.append(past, keep=0)

        def going(tokens: Tensor) -> Tensor:
            if len(tokens) > 1:
                lm.append(tokens.flip(0), keep=len(tokens))
                lm.commit(lm.length - len(tokens))
            logits: Tensor = lm.append(tokens, keep=len(tokens)).logits
            lm.commit(lm.length)
            return logits

        return going

    return open_


def in_float32(low: Sequence[Comparison], precise: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons of a lower precision with the kinds of those in float32.

    Rounding of half precision is as large as the distance of two laws, so it decides nothing.
    """
    kinds = {(comparison.way, comparison.size): comparison.kind for comparison in precise}
    judged = []
    for comparison in low:
        kind = kinds[comparison.way, comparison.size]
        if kind in SMALL:
            kind = Difference.ROUNDING if comparison.gap else Difference.NONE
        judged.append(replace(comparison, kind=kind))
    return judged


@torch.inference_mode()
def ignores_states(model: PreTrainedModel, size: int) -> bool:
    """Return whether a stock pass of `size` tokens is the same after the states of a kind are 0."""
    return any(
        zeroed is not None and torch.equal(zeroed, whole)
        for whole, zeroed in (_with_zeros(model, size, kind) for kind in STATES)
    )


@torch.inference_mode()
def moved_by_states(model: PreTrainedModel) -> float:
    """Return by how many deviations the logits of a token move where states are 0."""
    gaps = [
        float((zeroed - whole).abs().max() / whole.std())
        for whole, zeroed in (_with_zeros(model, 1, kind) for kind in STATES)
        if zeroed is not None
    ]
    return min(gaps, default=0.0)


def _with_zeros(model: PreTrainedModel, size: int, kind: str) -> tuple[Tensor, Tensor | None]:
    """Return logits of a stock pass, and those after the states of a kind were set to 0."""
    text = ordinary(rows_of(model), PAST + size)

    def scored(zero: bool) -> tuple[Tensor, bool]:
        cache = stock_cache(model)
        feed(model, text[:PAST], cache, 1)
        had = zero and zero_states(cache, kind)
        return feed(model, text[PAST:], cache, size, PAST).logits[0].float(), had

    whole, (zeroed, had) = scored(False)[0], scored(True)
    return whole, zeroed if had else None
