"""Measure the parts of a target's pass: what its kinds of modules take in a pass of modules."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from spsbench.loop.timing import Stopwatch
from spsbench.loop.types import Engine
from spsbench.metrics.costs import PARTS_OF_PASS
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import Surface
from spsbench.plugins import make
from spsbench.spec import Spec

HEAD, LINEAR, ATTENTION, NORMS, REST = PARTS_OF_PASS
INSIDE = "linear layers inside attention"
SIZES = (1, 5, 9)  # tokens of a pass


class PartMeter:
    """Passes of the target module by module; a turn feeds each number of tokens once.

    Forward hooks time the modules as the engine `eager` calls them. An engine that compiles layers
    has the same linear layers, and takes less for the rest.

    Args:
        model: the target.
        vocab_size: rows of its logits that are tokens.
        text: token ids, at least as many as `context` and the largest pass take.
        sizes: tokens fed, rising.
        context: tokens cached before a pass.
        draw: random source of the orders.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        text: Sequence[int],
        sizes: Sequence[int],
        context: int,
        draw: Random,
    ) -> None:
        engine: Engine = make("engines", Spec("eager"))
        self._lm = engine.session(model, vocab_size=vocab_size)
        self._kinds = dict(kinds_of(model))
        self._watches = {kind: Stopwatch(model.device) for kind in (*PARTS_OF_PASS, INSIDE)}
        self._text = torch.tensor(text[: context + sizes[-1]], dtype=torch.int64)
        self._sizes, self._context, self._draw = tuple(sizes), context, draw
        self._turns: list[Floats] = []
        self._lm.append(self._text[:context], keep=0)

    def turn(self) -> None:
        """Time every pass once."""
        seconds = np.empty((len(PARTS_OF_PASS), len(self._sizes)))
        with hooked(self._kinds, self._watches):
            for number in self._draw.sample(range(len(self._sizes)), len(self._sizes)):
                end = self._context + self._sizes[number]
                with self._watches[REST].running():
                    self._lm.append(self._text[self._context : end], keep=self._sizes[number])
                laps = {kind: watch.lap() for kind, watch in self._watches.items()}
                self._lm.commit(self._context)
                laps[ATTENTION] -= laps[INSIDE]
                laps[LINEAR] += laps[INSIDE]
                laps[REST] -= sum(laps[kind] for kind in PARTS_OF_PASS if kind != REST)
                seconds[:, number] = [max(laps[kind], 0.0) for kind in PARTS_OF_PASS]
        self._turns.append(seconds)

    def surfaces(self, turns: Sequence[int]) -> dict[str, Surface]:
        """Return the measurements of some of the turns, by part."""
        seconds = np.stack([self._turns[turn] for turn in turns])  # [T, parts, N]
        return {
            part: Surface(self._sizes, (self._context,), seconds[:, number, :, None])
            for number, part in enumerate(PARTS_OF_PASS)
        }


def kinds_of(model: PreTrainedModel) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules to time with their kinds; a module inside another of its kind is left out.

    Attention and norms are told by the names of their classes, as transformers spells them.
    """
    head = model.get_output_embeddings()
    inside: set[nn.Module] = set()
    for module in model.modules():
        name = type(module).__name__.lower()
        if module is head:
            yield module, HEAD
        elif hasattr(module, "out_features") or isinstance(module, Conv1D):
            yield module, INSIDE if module in inside else LINEAR
        elif "attention" in name and module not in inside:
            inside.update(module.modules())
            yield module, ATTENTION
        elif "norm" in name and module not in inside:
            yield module, NORMS


@contextmanager
def hooked(kinds: dict[nn.Module, str], watches: dict[str, Stopwatch]) -> Iterator[None]:
    """Time the forward calls of modules on the watch of their kind, inside the `with` block."""
    running: list[AbstractContextManager[None]] = []

    def enter(watch: Stopwatch) -> Callable[..., None]:
        def begin(module: nn.Module, inputs: Any) -> None:
            running.append(watch.running())
            running[-1].__enter__()

        return begin

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        running.pop().__exit__(None, None, None)

    handles = []
    for module, kind in kinds.items():
        handles.append(module.register_forward_pre_hook(enter(watches[kind])))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
