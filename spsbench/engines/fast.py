"""The default engine: transformers' own modules over a preallocated cache and packed weights.

The tokens are those of `eager`; what differs is where keys, values and weights lie, how many
threads work, and that the Python of a layer runs once instead of at every step (docs/engines.md).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from spsbench.engines.cuda import graphs
from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.eager import KINDS, EagerLM, check_rollback
from spsbench.engines.packing.worth import pack_linears
from spsbench.engines.preparing import prepare, unsuitable
from spsbench.engines.quantization.layers import dequantise
from spsbench.engines.session.engine_config import Choice, remember
from spsbench.engines.session.longrope import bordered
from spsbench.engines.session.session import FastLM
from spsbench.loop.types import LM

Kind = Callable[..., LM]


def kind_of_session(model: PreTrainedModel) -> Kind:
    """What runs `model`: here a device, or an attention, is given a runner of its own."""
    if model in KINDS:
        return KINDS[model]
    if model.device.type == "cuda":
        return GraphLM
    return EagerLM if unsuitable(model) else FastLM


class Fast:
    """Any decoder that `eager` takes, at the speed that the memory allows."""

    def session(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        """A session with `model`: its own cache over shared weights."""
        lm = kind_of_session(model)(model, vocab_size=vocab_size, layers=layers)
        return bordered(lm, model)

    def prepare(
        self,
        model: PreTrainedModel,
        *,
        known: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Pack `model` in place and choose its threads; what was chosen, as `Choice.to_json`.

        Raises:
            UnsupportedModelError: eager sessions cannot run it either.
        """
        if model.device.type == "cuda" and model not in KINDS:
            dequantise(model)
            check_rollback(model)
            return remember(model, of_graphs(model)).to_json()
        before = None if known is None else Choice.from_json(known)
        choice = prepare(model, known=before, threads=threads)
        if choice.engine == "eager":
            dequantise(model)
            check_rollback(model)
        return choice.to_json()

    def pack(self, module: nn.Module) -> None:
        """Lay out the linear layers of a drafter's own network as those of models, in place."""
        pack_linears(module)


def of_graphs(model: PreTrainedModel) -> Choice:
    """What runs a model on CUDA: recorded passes, or `eager` and why."""
    if reason := graphs.known(model).reason:
        return Choice(engine="eager", reason=reason)
    return Choice(engine="fast", reason="CUDA graphs")
