"""A decoder's layers without their Python: captured once, replayed for every layer and step.

A layer of a small model spends more time in Python than in its kernels. The layers of a decoder
are one computation over different weights, so what the first does serves all of them: weights, keys
and values are its inputs. Where each of its operations has a kernel it becomes a program, which C
runs, in a whole pass (`whole_pass`) for all layers in one call. It comes from transformers' own
code, and each layer's first two replays are compared with it, number by number; a difference, or an
operation without a kernel, leaves that code in use.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from spsbench.engines.experts import watch_experts
from spsbench.engines.replay import ReplayedForward
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.engines.session.joint import JointCache
from spsbench.extensions.cpu.replay.fused_modules import one_rotation
from spsbench.extensions.cpu.replay.graph_capture import CaptureCache, LayerInputs, capture
from spsbench.extensions.cpu.replay.layer_program import Program, Scratch, Weights
from spsbench.extensions.cpu.replay.merged_products import merged
from spsbench.extensions.cpu.replay.operations import RefusedError
from spsbench.extensions.cpu.replay.stretched import StretchedPrograms

Caches = PreallocatedCache | JointCache
CHECKS = 2  # replays of a layer that are compared with its own code


class LayerReplay:
    """The programs of a model's layers, shared by every session over it."""

    def __init__(self) -> None:
        self.layers: list[ReplayedLayer] = []
        self.programs: dict[Any, Program | None] = {}  # by the kind of a call
        self.scratch = Scratch()
        self.cache: Caches | None = None  # of the session, or the sessions, whose pass it is
        self.span = torch.empty(0)  # [past + m], only its length is used
        self.recording: Any = None  # takes the calls of layers, in a pass that is recorded
        self.refused: str | None = None  # why a layer runs its own code
        self.stretched: StretchedPrograms | None = None  # in a pass over many tokens
        self.captures = False  # layers, for such passes
        self.keys_alone = False  # nobody reads what the last layer makes of them
        self._one = Lock()  # pass at a time

    def begin(self, span: Tensor, cache: "Caches") -> bool:
        """Begin a pass over `cache`; False: another pass is not over, in a thread or a hook."""
        if not self._one.acquire(blocking=False):
            return False
        self.span, self.cache = span, cache
        return True

    def room(self, number: int) -> Any:
        """Return a layer's part of the cache."""
        return None if self.cache is None else self.cache.layers[number]

    def end(self) -> None:
        """End the pass."""
        self.cache = self.stretched = None
        self.keys_alone = False
        self._one.release()

    def refuse(self, key: Any, why: str) -> None:
        """Never replay calls of the kind `key` again."""
        self.programs[key] = None
        self.refused = self.refused or why


class ReplayedLayer(ReplayedForward, Weights):
    """Stands in for the `forward` of one layer."""

    def __init__(self, layer: nn.Module, number: int, kind: int, replay: LayerReplay) -> None:
        """Stand in for `layer`.

        Args:
            layer: one of a decoder.
            number: its part of a cache.
            kind: the same for layers that are the same computation.
            replay: of the model.
        """
        super().__init__([x for part in layer.modules() for x in parameters_and_buffers(part)])
        self.layer, self.number, self.kind, self.replay = layer, number, kind, replay
        self.plain = type(layer).forward
        self.unchecked: dict[Any, int] = {}  # by the kind of a call: replays still to be compared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the layer's own `forward`, replayed where that is possible."""
        cache = cache_in(args, kwargs)
        if cache is None or cache is not self.replay.cache:
            return self.plain(self.layer, *args, **kwargs)
        key, tensors = kind_of_call(self.kind, args, kwargs)
        if self.replay.stretched is not None:
            return self._stretched(self.replay.stretched, key, tensors, cache, args, kwargs)
        if self.replay.recording is None:
            return self._replayed(key, tensors, cache, args, kwargs)
        run = partial(self._replayed, key, tensors, cache, args, kwargs)
        return self.replay.recording.call(self, key, tensors, run)

    def _replayed(self, key: Any, tensors: list[Tensor], cache: Any, args: Any, kwargs: Any) -> Any:
        span, room = self.replay.span, cache.layers[self.number]
        if room.capacity < len(span):
            return self.plain(self.layer, *args, **kwargs)
        window = span[room.first :] if room.first else span
        if self.unchecked.get(key) != 0:
            inputs = LayerInputs(tensors, span, window, room.keys, room.values, self.state)
            return self._checked(key, inputs, args, kwargs)
        program = self.replay.programs[key]
        if program is not None and self.ready() and program.fits(tensors, len(window)):
            result = program.over(self, tensors, [room], len(span))
            room.length = len(span)
            return result
        return self.plain(self.layer, *args, **kwargs)

    def _stretched(
        self,
        programs: StretchedPrograms,
        key: Any,
        tensors: list[Tensor],
        cache: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Return the layer's result in a pass over many tokens, by a program where there is one."""
        span, room = self.replay.span, cache.layers[self.number]
        if self.replay.captures:
            if key not in self.replay.programs:
                inputs = LayerInputs(tensors, span, span, room.keys, room.values, self.state)
                self._capture(key, inputs, args, kwargs)
            return self.plain(self.layer, *args, **kwargs)
        replay, end = self.replay, len(span)
        scratch, keys_alone = replay.scratch, replay.keys_alone
        result = programs.run(self, key, tensors, cache, end, scratch, keys_alone)
        if result is None:
            return self.plain(self.layer, *args, **kwargs)
        room.length = end
        return result

    def _checked(self, key: Any, inputs: LayerInputs, args: Any, kwargs: Any) -> Any:
        """Return the layer's own result, and check that a replay gives the same."""
        with watch_experts():  # experts are counted once
            if key not in self.replay.programs:
                self._capture(key, inputs, args, kwargs)
            program = self.replay.programs[key]
            replayed = None
            if program is not None:
                if not self.ready() or not program.fits(inputs.tensors, len(inputs.window)):
                    return self.plain(self.layer, *args, **kwargs)
                room = self.replay.room(self.number)
                replayed = program.over(self, inputs.tensors, [room], len(inputs.span))
        out = self.plain(self.layer, *args, **kwargs)  # last: its keys and values stay
        self.unchecked[key] = self.unchecked.get(key, CHECKS) - 1
        if replayed is None:
            self.unchecked[key] = 0
        elif not (isinstance(out, Tensor) and torch.equal(replayed, out)):
            self.replay.refuse(key, "a replay of a layer differs from its own code")
        return out

    def _capture(self, key: Any, inputs: LayerInputs, args: Any, kwargs: Any) -> None:
        """Make a program of the layer for these arguments, if every operation has a kernel."""
        n = len(self.state)

        def run(*arguments: Tensor) -> Any:
            tensors = iter(arguments)
            cache = CaptureCache(*arguments[-n - 4 : -n])
            call_args = [replaced(a, tensors, cache) for a in args]
            call_kwargs = {name: replaced(a, tensors, cache) for name, a in kwargs.items()}
            return self.plain(self.layer, *call_args, **call_kwargs)

        try:
            with one_rotation(self.layer), merged(self.layer, lambda: run(*inputs.all())):
                listing = capture(run, inputs)
                result, states = listing.result, inputs.tensors[0]
                if (result.shape, result.dtype) != (states.shape, states.dtype):
                    raise RefusedError("a result of another kind than the hidden states")
                self.replay.programs[key] = Program(inputs, listing)
        except RefusedError as error:
            self.replay.refuse(key, str(error))
        except Exception as error:  # foreign code may do what cannot be captured
            self.replay.refuse(key, f"a layer cannot be captured ({type(error).__name__})")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.plain.__get__(memo[id(self.layer)])  # a copied model is a stock one


def signature(layer: nn.Module) -> tuple[Any, ...]:
    """Return the same for layers that are the same computation: modules, settings, tensors."""
    parts: list[Any] = []
    for name, module in layer.named_modules():
        plain = (int, float, bool, str, type(None))
        settings = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
        settings.pop("layer_idx", None)
        parts.append((name, type(module), *sorted(settings.items(), key=lambda item: item[0])))
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        parts.append((name, tuple(tensor.shape), tensor.dtype, tensor.layout))
    return tuple(parts)


def parameters_and_buffers(module: nn.Module) -> list[Tensor]:
    """Return each parameter and buffer of a module, without those of its parts."""
    tensors = *module._parameters.values(), *module._buffers.values()
    return [tensor for tensor in tensors if tensor is not None]


def kind_of_call(
    kind: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Tensor]]:
    """Return the key of calls that one program serves, for a layer of `kind`, and the tensors.

    The hidden states [1, m, D] come first; m is part of the key.
    """
    tensors: list[Tensor] = []
    form = (*(form_of(a, tensors) for a in args), *kwargs)
    form += tuple(form_of(a, tensors) for a in kwargs.values())
    return (kind, tensors[0].shape[1], form), tensors


def form_of(value: Any, tensors: list[Tensor]) -> Any:
    """Return the kind of an argument; tensors are collected."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, Caches):
        return type(value)
    if isinstance(value, tuple):
        return tuple([form_of(item, tensors) for item in value])
    return value if value is None or isinstance(value, bool | int | str) else id(value)


def replaced(value: Any, tensors: Iterator[Tensor], cache: Cache) -> Any:
    """Return an argument with its tensors and its cache exchanged for those of a capture."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Caches):
        return cache
    if isinstance(value, tuple):
        return tuple(replaced(item, tensors, cache) for item in value)
    return value


def cache_in(args: Sequence[Any], kwargs: dict[str, Any]) -> "Caches | None":
    """Return the cache among arguments, whatever a model calls it: past_key_values, layer_past."""
    arguments = (*args, *kwargs.values())
    return next((value for value in arguments if isinstance(value, Caches)), None)
