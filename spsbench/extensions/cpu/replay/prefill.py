"""Passes over many tokens, as of a prompt: the model's own code, over fewer and larger operators.

A prompt has any length, so that no program is recorded for it. Products of the same inputs are
computed together, and a rotation is one operator. A row has the bits that it has in passes over a
few tokens, where the model's operators have kernels.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.engines.eager import ordinary, rows_of
from spsbench.engines.experts import watch_experts
from spsbench.engines.linear_layers import hooked
from spsbench.engines.session.masks import PassInputs
from spsbench.extensions.cpu.replay.fused_modules import one_rotation
from spsbench.extensions.cpu.replay.merged_products import InPanels, of_same_inputs, together

TRIED = 3  # tokens of a trial
COLLECTS = "transformers.utils.output_capturing"  # the module whose hooks change nothing


class PassOutput(NamedTuple):
    """The output of a pass, as that of a model."""

    logits: Tensor  # [1, keep, V]
    hidden_states: Mapping[int, Tensor]  # layer -> [1, m, D]


class Prefill:
    """Runs passes of one model that have no program.

    Args:
        model: any.
        layer: of the model; its modules rotate as those of all layers.
    """

    def __init__(self, model: Any, layer: nn.Module) -> None:
        self._model, self._layer = model, layer
        self._groups: Sequence[Sequence[InPanels]] | None = None  # products of the same inputs
        self._body: Any = None  # of the model, without its head
        self._head: Any = model.get_output_embeddings()

    def run(self, request: PassInputs) -> Any:
        """Return the output of the model; where nobody reads the logits there may be none."""
        if self._groups is None:
            if any(map(hooked_by_others, self._model.modules())):  # a trial is no pass of theirs
                return request.of(self._model)
            self._groups = self._tried()
        whole = self._body is None or any(map(hooked_by_others, (self._model, self._head)))
        with self._larger(self._groups):
            if whole or not request.unread:
                return request.of(self._model)
            out = request.of(self._model, self._body)
        none = torch.empty(1, 0, rows_of(self._model), dtype=out.last_hidden_state.dtype)
        return PassOutput(none, out.hidden_states or {})

    @contextmanager
    def _larger(self, groups: Sequence[Sequence[InPanels]]) -> Iterator[None]:
        """Run larger operators, if there are any."""
        if not groups:
            yield
            return
        with one_rotation(self._layer), together(groups):
            yield

    def _tried(self) -> Sequence[Sequence[InPanels]]:
        """Return which products have the same inputs; larger operators must give the same bits."""
        ids = ordinary(rows_of(self._model), TRIED)[None]
        logits: list[Tensor] = []

        def once() -> None:
            logits.append(self._model(input_ids=ids, use_cache=False).logits)

        try:
            with watch_experts():  # those of a trial are not counted
                groups = of_same_inputs(self._model, once)
                with self._larger(groups):
                    once()
        except Exception:  # foreign code may raise anything
            return []
        with suppress(Exception), watch_experts():
            states = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            if torch.equal(self._head(states), logits[0]):
                self._body = self._model.base_model
        return groups if torch.equal(logits[0], logits[-1]) else []


def hooked_by_others(module: nn.Module) -> bool:
    """Return whether the module has hooks other than those that collect hidden states."""
    if not hooked(module):
        return False
    hooks = *module._forward_hooks.values(), *module._forward_pre_hooks.values()
    return any(hook.__module__ != COLLECTS for hook in hooks)
