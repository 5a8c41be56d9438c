"""The engine for CUDA: passes of fixed shape, recorded as graphs, over a preallocated cache.

At batch size 1 a pass is a few hundred small kernels, and starting them from Python costs more than
running them; a graph starts them all at once. Prompts, and passes of more tokens than the largest
shape, run as in `eager`, over the same cache. Models without support run in `eager` entirely, and
the reason is kept.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.engines.cuda.static import SIZES, StaticRunner
from spsbench.engines.eager import EagerLM, slides


@dataclass(slots=True)
class Known:
    """The state of a model while its weights keep their addresses."""

    places: int  # of the weights: recordings hold their addresses
    reason: str | None  # why the model runs as in `eager`
    idle: dict[tuple[int, ...], list[StaticRunner]]  # layers -> runners that no session uses


_KNOWN: weakref.WeakKeyDictionary[PreTrainedModel, Known] = weakref.WeakKeyDictionary()


def known(model: PreTrainedModel) -> Known:
    """Return the state of `model`, tried at first and after its weights have moved."""
    places = hash(tuple(weight.data_ptr() for weight in model.parameters()))
    found = _KNOWN.get(model)
    if found is None or found.places != places:
        found = _KNOWN[model] = Known(places, unsupported(model), {})
        if found.reason is None:
            found.reason = unfaithful(model)
    return found


class GraphLM(EagerLM):
    """A session with `model`: as `EagerLM`, faster on CUDA; elsewhere the same passes unrecorded.

    Sessions that follow each other share cache and graphs, sessions at the same time do not.

    Attributes:
        reason: why the model runs as in `eager`; None: it runs in recorded passes.
    """

    joins = False

    def _open(self) -> None:
        super()._open()
        self._known = known(self.model)
        self.reason = self._known.reason
        if self.reason is None:
            self._lend()

    @torch.inference_mode()
    def _lend(self) -> None:
        """Take a runner that no session uses; give it back when this one is dropped."""
        idle = self._known.idle.setdefault(self.layers, [])
        self._runner = idle.pop() if idle else StaticRunner(self.layers, self.limit)
        self._cache = self._runner.cache
        self._cache.reset()
        self._returned = weakref.finalize(self, idle.append, self._runner)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        if self.reason is not None:
            return super()._forward(tokens, keep, parents)
        if keep == 0 or len(tokens) > SIZES[-1]:
            end = self._length + len(tokens)
            self._runner.reserve(end, self._length)
            self._cache.aim(self._length, end)
            return super()._forward(tokens, keep, parents)
        try:
            out = self._runner(self.model, tokens, self._length, parents)
        except Exception as error:  # a foreign forward may raise anything
            self._give_up(error)
            return super()._forward(tokens, keep, parents)
        self._length += len(tokens)
        return out

    def _give_up(self, error: BaseException) -> None:
        """Continue as in `eager`, in this session and later ones."""
        while error.__context__ is not None:  # the first one: ending a failed recording fails too
            error = error.__context__
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        self.reason = self._known.reason = (
            f"{type(self.model).__name__} cannot be recorded ({line})"
        )
        self._cache = self._runner.cache.dynamic(self._length)
        self._returned.detach()  # no session will want it: let its memory go
        self._known.idle.clear()
        del self._runner

    def _keep(self, length: int, nodes: list[int]) -> None:
        if self.reason is not None:
            super()._keep(length, nodes)
        elif length == 0:
            self._cache.reset()
        elif nodes:
            self._cache.keep(length, nodes)


def unsupported(model: PreTrainedModel) -> str | None:
    """Return why `model` cannot run in passes of fixed shape, by its configuration, or None."""
    config, name = model.config.get_text_config(), type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if slides(model) or kinds:
        return f"{name} has layers without full attention ({', '.join(sorted(kinds)) or 'sliding'})"
    if not getattr(model, "_can_compile_fullgraph", False):
        return f"transformers does not say that the forward of {name} allows fixed shapes"
    attention = config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"attention {attention} takes no ready mask: expected sdpa or eager"
    places = {str(weight.device) for weight in model.parameters()}
    if len(places) > 1:
        return f"{name} is spread over {', '.join(sorted(places))}"
    return None


@torch.inference_mode()
def unfaithful(model: PreTrainedModel) -> str | None:
    """Return why passes of fixed shape are not `eager`'s, by trial: three lengths through one.

    A forward that keeps a length, a position or a mask of its own has it frozen in a graph; then
    the second is wrong.
    """
    name, eager, ours = type(model).__name__, EagerLM(model), GraphLM(model)
    if eager.limit is not None and eager.limit < 7:
        return f"{name} has a context of {eager.limit}: expected 7 tokens or more"
    ids = torch.arange(9) % eager.vocab_size
    gap = scale = 0.0
    for lm in eager, ours:
        lm.append(ids[:3], keep=0)
    for fed in ids[3:5], ids[5:7], ids[7:9]:
        plain, static = (lm.append(fed, keep=2).logits.float() for lm in (eager, ours))
        if ours.reason is not None:
            return ours.reason
        gap = max(gap, float((plain - static).abs().max()))
        scale = max(scale, float(plain.abs().max()))
        for lm in eager, ours:
            lm.commit(lm.length - 1)
    if not gap <= max(1e-3, 0.05 * scale):  # bf16 differs by its rounding, a frozen length by more
        return f"{name}: its passes of fixed shape are off by {gap:.3g}"
    return None
