"""The engine for CUDA by the library's way: transformers' `StaticCache` under `torch.compile`.

At batch size 1 a pass is a few hundred small kernels, and starting them from Python costs more than
running them. `torch.compile(mode="reduce-overhead")` records a pass of one shape as a CUDA graph,
which starts all of them at once. On other devices passes are the same, and not compiled.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, StaticCache

from spsbench.engines.eager import KINDS, EagerLM, UnsupportedModelError, check_rollback, slides
from spsbench.engines.quantization.layers import dequantise
from spsbench.engines.session.engine_config import EngineConfig, engine_config_of, set_engine_config
from spsbench.engines.session.longrope import border_of, bordered
from spsbench.engines.session.masks import PassInputs
from spsbench.loop.sampling import send
from spsbench.loop.tree import additive_mask
from spsbench.loop.types import LM, Engine

PASS_SIZES = (1, 2, 3, 5, 9, 17, 33, 65, 129)  # tokens of a compiled pass; the rest is padding
FIRST_ROWS = 2048  # of a new cache, where the context is not shorter: growth compiles anew


class Output(NamedTuple):
    """The output of a pass, as of a model."""

    logits: Tensor  # [1, m, V]
    hidden_states: dict[int, Tensor]  # layer -> [1, m, D]


class StaticLM(EagerLM):
    """A session over a cache of fixed size, whose rows from `length` on are free to be written.

    A rollback sets a number. The mask says which rows a pass sees, of chains and of trees.
    """

    joins = False

    def _open(self) -> None:
        super()._open()
        self._rows = 0  # of the cache
        compiles = self.device.type == "cuda"
        self._compiled: Any = (
            torch.compile(self.model, mode="reduce-overhead") if compiles else self.model
        )

    def _expect(self, tokens: int) -> None:
        """Make room for `tokens`, keeping the rows that are there."""
        if tokens <= self._rows:
            return
        rows = self._rows or min(FIRST_ROWS, self.limit or FIRST_ROWS)
        while rows < tokens:
            rows *= 2
        kept = self._cache.layers if self._length else ()
        self._rows, self._cache = rows, StaticCache(self.model.config, max_cache_len=rows)
        for layer, old in zip(self._cache.layers, kept, strict=False):
            layer.lazy_initialization(old.keys, old.values)
            layer.keys[:, :, : self._length] = old.keys[:, :, : self._length]
            layer.values[:, :, : self._length] = old.values[:, :, : self._length]

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Output:
        m, past = len(tokens), self._length
        size = next((size for size in PASS_SIZES if m <= size), m) if keep and past else m
        self._expect(past + size)
        ids = pad(send(tokens, self.device), (0, size - m))
        places = pad(self._positions(m, parents), (0, size - m))
        tree = torch.arange(-1, m - 1) if parents is None else parents
        mask = additive_mask(tree, m, past, self.model.dtype)
        lowest = torch.finfo(mask.dtype).min
        mask = pad(mask, (0, self._rows - past - m, 0, size - m), value=lowest)
        mask[:, :, m:, 0] = 0  # a padding row sees a key: a softmax over nothing is NaN
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(past)
        inputs = PassInputs(ids, places, send(mask, self.device), self._cache, size, self.layers)
        out = inputs.of(self._compiled if keep and past else self.model)
        self._length += m
        hidden = {layer: out.hidden_states[layer][:, :m].clone() for layer in self.layers}
        return Output(out.logits[:, :m].clone(), hidden)  # the next pass overwrites a graph's

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Move the rows `nodes` after the first `length`; those of a chain stay."""
        if length == 0 and not nodes and self._rows:
            self._cache.reset()  # NaN in a row would outlive a mask
        if not nodes:
            return
        index = send(torch.tensor(nodes), self.device)
        for layer in self._cache.layers:
            for rows in layer.keys, layer.values:
                rows[:, :, length : length + len(nodes)] = rows.index_select(2, index)


class Static(Engine):
    """Engine for models that transformers declares fit for fixed shapes; others run as `eager`."""

    def session(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        config = engine_config_of(model)
        static = config is not None and config.engine == "static"
        kind = StaticLM if static else KINDS.get(model, EagerLM)
        return bordered(lambda: kind(model, vocab_size=vocab_size, layers=layers), model)

    def prepare(self, model: PreTrainedModel, **options: Any) -> dict[str, Any]:
        """Choose static sessions for `model`, or those of `eager`; return the choice as JSON."""
        dequantise(model)
        if choice := engine_config_of(model):
            check_rollback(model)
            return choice.to_json()
        reason = unsupported(model)
        if reason is None:
            try:
                check_rollback(model, StaticLM)
            except UnsupportedModelError as error:
                reason = str(error)
        if reason is not None:
            check_rollback(model)
            return set_engine_config(model, EngineConfig(engine="eager", reason=reason)).to_json()
        compiled = model.device.type == "cuda"
        # The compiler recommends a narrower float32, with other logits.
        warnings.filterwarnings("ignore", "TensorFloat32", UserWarning)
        words = "compiled, experimental" if compiled else "not compiled, which is for CUDA"
        return set_engine_config(model, EngineConfig(engine="static", reason=words)).to_json()


def unsupported(model: PreTrainedModel) -> str | None:
    """Return why `model` cannot run in passes of fixed shape, by its description, or None."""
    config, name = model.config.get_text_config(), type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if model in KINDS or slides(model) or kinds or border_of(model) is not None:
        return f"{name} attends otherwise than to all of one text"
    if not getattr(model, "_can_compile_fullgraph", False):
        return f"transformers does not say that the forward of {name} allows fixed shapes"
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"attention {attention} takes no ready mask: expected sdpa or eager"
    devices = {str(weight.device) for weight in model.parameters()}
    if len(devices) > 1:
        return f"{name} is spread over {', '.join(sorted(devices))}"
    return None
