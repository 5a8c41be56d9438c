"""Passes over many tokens, as of a prompt, which have any length.

The first prompt runs the model's own code. Before the second one a trial finds what is faster and
gives the same bits: programs of layers, stretched to the length of a pass; else larger operators,
for products of the same inputs and rotations; and the model without its head, where nobody reads
the logits. A row has the bits that it has in passes over a few tokens, where the model's operators
have kernels.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.engines.eager import ordinary, rows_of
from spsbench.engines.experts import watch_experts
from spsbench.engines.linear_layers import hooked
from spsbench.engines.session.cache import PreallocatedCache, doubled
from spsbench.engines.session.masks import PassInputs, windows_of
from spsbench.extensions.cpu.replay.attention import CAUSAL
from spsbench.extensions.cpu.replay.fused_modules import one_rotation
from spsbench.extensions.cpu.replay.layer_replay import LayerReplay
from spsbench.extensions.cpu.replay.merged_products import InPanels, of_same_inputs, together
from spsbench.extensions.cpu.replay.stretched import FEW, StretchedPrograms

TRIED = 13  # tokens of a trial
COLLECTS = "transformers.utils.output_capturing"  # the module whose hooks change nothing


class PassOutput(NamedTuple):
    """The output of a pass, as that of a model."""

    logits: Tensor  # [1, keep, V]
    hidden_states: Mapping[int, Tensor]  # layer -> [1, m, D]


class Way(NamedTuple):
    """A way through the layers with the bits of the model's own code, as a trial has found it."""

    programs: StretchedPrograms | None = None
    forms: Sequence[tuple[Tensor, Tensor]] = ()  # keys and values of each layer, without tokens
    groups: Sequence[Sequence[InPanels]] = ()  # products of the same inputs


class Prefill:
    """Runs passes of one model over many tokens.

    Args:
        model: any.
        replay: of its layers; no other pass may run meanwhile.
    """

    def __init__(self, model: Any, replay: LayerReplay) -> None:
        self._model, self._replay = model, replay
        self._layer: nn.Module = replay.layers[0].layer  # its modules rotate as those of all
        self._prompts = 0  # passes before the first trial
        self._ways: dict[bool, Way] = {}  # by whether hidden states are returned: layers are told
        self._body: Any = None  # of the model, without its head
        within = {part for r in replay.layers for part in list(r.layer.modules())[1:]}
        self._outer = [part for part in model.modules() if part not in within]  # and layers
        self._head: Any = model.get_output_embeddings()
        self._mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype)  # a model makes none beside it
        vars(self._mask)[CAUSAL] = True

    def run(self, request: PassInputs, span: Tensor) -> Any:
        """Return the output of a pass up to `span`, without logits where nobody reads them."""
        way = self._ways.get(bool(request.layers))
        if way is None:
            self._prompts += 1
            if self._prompts == 1 or any(map(hooked_by_others, self._model.modules())):
                return request.of(self._model)  # a trial is no pass that hooks wait for
            with watch_experts():  # those of a trial are not counted
                if not self._ways:
                    self._body = self._without_head()
                way = self._ways[bool(request.layers)] = self._tried(request.layers)
        hears = any(map(hooked_by_others, self._outer))
        body = self._body if request.unread and not hears else None
        last = len(self._replay.layers)  # the hidden state that the last layer makes
        self._replay.keys_alone = body is not None and max(request.layers, default=0) < last
        writable = type(request.cache) is PreallocatedCache
        if way.programs is not None and request.masks is None and writable:
            make_room(request.cache, way.forms, len(span))
            with self._stretching(way.programs, request.cache, span):
                out = request._replace(masks=self._mask).of(self._model, body)
        else:
            with self._larger(way.groups):
                out = request.of(self._model, body)
        if body is None:
            return out
        none = torch.empty(1, 0, rows_of(self._model), dtype=out.last_hidden_state.dtype)
        return PassOutput(none, out.hidden_states or {})

    @contextmanager
    def _stretching(
        self, programs: StretchedPrograms, cache: PreallocatedCache, span: Tensor
    ) -> Iterator[None]:
        """Run programs for layers over `cache`."""
        replay = self._replay
        replay.span, replay.cache, replay.stretched = span, cache, programs
        try:
            yield
        finally:
            programs.end()
            replay.cache = replay.stretched = None

    @contextmanager
    def _larger(self, groups: Sequence[Sequence[InPanels]]) -> Iterator[None]:
        """Run larger operators, if there are any."""
        if not groups:
            yield
            return
        with one_rotation(self._layer), together(groups):
            yield

    def _tried(self, layers: tuple[int, ...]) -> Way:
        """Find what gives the bits of the model's own code, hidden states of `layers` too."""
        with suppress(Exception):  # foreign code may raise anything
            if (way := self._captured(layers)) is not None:
                return way
        with suppress(Exception):
            return Way(groups=self._grouped(layers))
        return Way()

    def _without_head(self) -> Any:
        """Return the body of the model; None where head and body are not the whole model."""
        with suppress(Exception):
            ids, body = ordinary(rows_of(self._model), TRIED), self._model.base_model
            logits = self._feed(ids, PreallocatedCache()).logits
            out = PassInputs(ids, torch.arange(TRIED), None, PreallocatedCache(), 1).of(body, body)
            if torch.equal(self._head(out.last_hidden_state), logits):
                return body
        return None

    def _captured(self, layers: tuple[int, ...]) -> Way | None:
        """Return programs of layers; None: they do not give what the model's own code gives."""
        if windows_of(self._model) is not None:
            return None
        ids, cache = ordinary(rows_of(self._model), 1 + 2 * FEW), PreallocatedCache()
        programs = StretchedPrograms(self._replay.programs, self._replay.layers)
        self._feed(ids[:1], cache)
        self._replay.captures = True
        try:
            for tokens in (FEW, 2 * FEW):
                with self._stretching(programs, cache, torch.arange(1 + tokens)):
                    self._feed(ids[1 : 1 + tokens], cache, self._mask, layers)
                cache.keep(1)
        finally:
            self._replay.captures = False
        ids = ids[: 1 + TRIED]
        plain = read_by_others(self._feed(ids[1:], cache, layers=layers), layers)
        cache.keep(1)
        for programs.joins in (True, False):
            with self._stretching(programs, cache, torch.arange(1 + TRIED)):
                stretched = self._feed(ids[1:], cache, self._mask, layers)
            if programs.any() and are_equal(plain, read_by_others(stretched, layers)):
                return Way(
                    programs,
                    [(x.keys[:, :, :0].clone(), x.values[:, :, :0].clone()) for x in cache.layers],
                )
            cache.keep(1)
        return None

    def _grouped(self, layers: tuple[int, ...]) -> Sequence[Sequence[InPanels]]:
        """Return which products have the same inputs; none where larger operators differ."""
        ids = ordinary(rows_of(self._model), TRIED)
        made: list[Sequence[Tensor]] = []

        def once() -> None:
            out = self._feed(ids, PreallocatedCache(), layers=layers)
            made.append(read_by_others(out, layers))

        groups = of_same_inputs(self._model, once)
        with self._larger(groups):
            once()
        return groups if are_equal(made[0], made[-1]) else ()

    def _feed(
        self,
        ids: Tensor,
        cache: PreallocatedCache,
        mask: Tensor | None = None,
        layers: tuple[int, ...] = (),
    ) -> Any:
        """Return the output of the model for tokens after those in `cache`."""
        start = cache.layers[0].length if cache.layers else 0
        positions = torch.arange(start, start + len(ids))
        return PassInputs(ids, positions, mask, cache, len(ids), layers).of(self._model)


def make_room(cache: Any, forms: Sequence[tuple[Tensor, Tensor]], least: int) -> None:
    """Make room for `least` tokens in layers of these forms, which the first pass may not know."""
    while len(cache.layers) < len(forms):
        cache.layers.append(cache.layer_class_to_replicate())
    for layer, form in zip(cache.layers, forms, strict=True):
        if not layer.is_initialized:
            layer.lazy_initialization(*form)
        if layer.capacity < least:
            layer.widen(doubled(least, layer.capacity, layer.most))


def read_by_others(out: Any, layers: Sequence[int]) -> Sequence[Tensor]:
    """Return the logits and the hidden states of a pass that are asked for."""
    return [out.logits, *(out.hidden_states[layer] for layer in layers)]


def are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether all tensors are equal, number by number."""
    return all(map(torch.equal, some, others))


def hooked_by_others(module: nn.Module) -> bool:
    """Return whether the module has hooks other than those that collect hidden states."""
    if not hooked(module):
        return False
    hooks = *module._forward_hooks.values(), *module._forward_pre_hooks.values()
    return any(hook.__module__ != COLLECTS for hook in hooks)
