"""Check that a changed model still computes its logits, up to the rounding that its numbers have.

A session over the changed model must come near to one plain pass of the stock model, over a text
that is fed, partly rejected and fed on. Where half precision leaves that open, float32 decides:
trained weights have outliers, so that two correct ways of one product may end in logits that are
far apart. A change may then be about as far from float32 as the stock model is, and no farther.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from spsbench.engines.eager import ordinary
from spsbench.engines.experts import expert_modules
from spsbench.engines.linear_layers import Slot, slots
from spsbench.engines.session.engine_config import threads
from spsbench.loop.types import LM

PROBED = 12  # tokens: more than one block of a kernel's rows
FIRST, REJECTED = 5, 3  # tokens before a rollback
MARGIN = 2.0  # times the stock model's own error
HAIR = 1e-3  # share of the logits that is allowed in addition
COARSE = 0.05  # share of the logits: near enough in half precision
MAX_RELATIVE_ERROR = 0.5  # share of the logits: noise above it proves nothing
ROUTED = 0.5  # share of tokens: rounding routes others to other experts
BLOCK = 2**18  # numbers widened at once: they stay in the caches
HALF = (torch.bfloat16, torch.float16)


class LogitCheck:
    """The logits of a stock model, and the allowed error of a changed one.

    Making one runs a pass, and raises whatever the model does, which is foreign code.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._share = ROUTED if any(expert_modules(model)) else 1.0
        self._ids = ordinary(model.config.get_text_config().vocab_size, PROBED)
        self._stock = self._exact = self._logits(model)  # [n, V]
        near = COARSE if model.dtype in HALF else HAIR
        self._allowed = near * float(_size(self._stock).max())  # root mean square of a token

    def refine(self, model: PreTrainedModel) -> None:
        """Set the bounds by float32 logits of `model`, which is stock again.

        The bound is twice the stock model's error and a share of the logits, larger if the pass in
        float32 fails; at most half of the logits. All are the largest root mean square of a token.
        """
        coarse = HAIR
        if model.dtype in HALF:
            coarse = COARSE
            with suppress(Exception), _in_float32(model):
                self._exact, coarse = self._logits(model), HAIR
        stock_error = float(_size(self._stock - self._exact).max())
        size = float(_size(self._exact).max())
        self._allowed = min(MARGIN * stock_error + coarse * size, MAX_RELATIVE_ERROR * size)

    def holds(self, model: PreTrainedModel) -> bool:
        """Return whether a plain pass of `model` is within the bounds."""
        try:
            return self._near(self._logits(model))
        except Exception:  # whatever was exchanged does not fit this model
            return False

    def holds_in_session(self, lm: LM) -> bool:
        """Return whether `lm`, new, runs within bounds, also after a rollback; False: it raises."""
        ids = self._ids
        try:
            first = lm.append(torch.cat([ids[:FIRST], ids[-REJECTED:]]), keep=FIRST + REJECTED)
            lm.commit(FIRST)
            second = lm.append(ids[FIRST:], keep=len(ids) - FIRST)
            return self._near(_wide(torch.cat([first.logits[:FIRST], second.logits])))
        except Exception:  # whatever was exchanged does not fit this model
            return False

    def _near(self, logits: Tensor) -> bool:
        """Return whether enough tokens of `logits` [n, V] are within the bounds, all finite."""
        error = _size(logits - self._exact)
        near = (error <= self._allowed).float().mean()
        return float(near) >= self._share and bool(error.isfinite().all())

    def _logits(self, model: PreTrainedModel) -> Tensor:
        """Return [n, V] of a pass without a cache, in one thread: more add up otherwise."""
        ids = self._ids[None].to(model.device)
        with threads(1):
            return _wide(model(input_ids=ids, use_cache=False).logits[0])


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _size(logits: Tensor) -> Tensor:
    """Return [n] root mean squares of [n, V]."""
    return logits.square().mean(-1).sqrt()


@contextmanager
def _in_float32(model: nn.Module) -> Iterator[None]:
    """Run `model` in float32 within the block: a module's weights are widened while it works.

    No more than one module is in memory twice, and of a linear layer a part.
    """
    layers = {slot.layer: slot for slot in slots(model)}
    with ExitStack() as undone:
        for module in model.modules():
            if module in layers:
                module.forward = partial(_wide_product, layers[module])
                undone.callback(delattr, module, "forward")
            elif any(weight is not None for weight in module._parameters.values()):
                parameters = dict(module._parameters)
                handles = (
                    module.register_forward_pre_hook(_widen_inputs),
                    module.register_forward_hook(partial(_narrow, parameters)),
                )
                undone.callback(module._parameters.update, parameters)
                for handle in handles:
                    undone.callback(handle.remove)
        yield


def _wide_product(slot: Slot, x: Tensor) -> Tensor:
    """Return `x W^T + b` of a stock layer in float32, some outputs at a time."""
    weight, bias = slot.weight, slot.layer.bias
    parts = torch.split(weight, max(1, BLOCK // weight.shape[1]))
    result = torch.cat([linear(x.float(), part.float()) for part in parts], dim=-1)
    return result if bias is None else result + bias.float()


def _widen_inputs(module: nn.Module, inputs: object) -> None:
    for name, weight in module._parameters.items():
        if weight is not None and weight.dtype in HALF:
            module._parameters[name] = nn.Parameter(weight.float(), requires_grad=False)


def _narrow(
    parameters: dict[str, nn.Parameter | None], module: nn.Module, *hook_arguments: object
) -> None:
    module._parameters.update(parameters)
