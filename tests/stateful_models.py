"""Tiny random models with states, one of each family whose states transformers' cache keeps."""

import copy
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from spsbench.engines.session.recurrent import register_states
from spsbench.engines.session.states import feed_tokens, stock_cache
from tests.oracles import models

SIZES: dict[str, Any] = {
    **models.SIZES,
    **models.NO_IDS,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,  # tied, they repeat a token for ever
}
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def family_fields(parts: Sequence[str], **own: Any) -> dict[str, Any]:
    """Fields of the parts that a family shares with others, and its own."""
    return {name: value for part in parts for name, value in TABLE["parts"][part].items()} | own


FAMILIES = {family: family_fields(**row) for family, row in TABLE["families"].items()}
"""Family -> what its tiny model is told beside the sizes; those of the fast suite first."""
FAMILIES["lfm3"]["sliding_window"] = None  # which TOML cannot say


def stateful(
    family: str,
    vocab: int = 12,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    noise: float = 0.0,
    scale: float = 2.0,
    registered: bool = True,
    **more: Any,
) -> PreTrainedModel:
    """A random model, whose sessions keep states unless it is not `registered`.

    With `noise` each weight is moved by that part of its spread: a draft model for the one without.
    """
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some configurations warn of what they were not given
        torch.manual_seed(seed)
        fields = {**SIZES, "vocab_size": vocab, **FAMILIES[family], **more}
        if "head_dim" not in fields:
            fields["head_dim"] = 8
        config = AutoConfig.for_model(family, **fields)
        config._experts_implementation = "eager"  # torch's products of experts take no float64
        model = AutoModelForCausalLM.from_config(config)
        for number in range(1 + bool(noise)):
            torch.manual_seed(seed + 1000 * number)
            for name, weight in model.named_parameters():
                if weight.dim() > 1 and "A_log" not in name:
                    spread = noise * weight.std() if number else scale / weight.shape[-1] ** 0.5
                    wide = torch.randn_like(weight) * spread
                    with torch.no_grad():
                        weight.copy_(weight + wide if number else wide)
    model = model.eval().to(dtype).requires_grad_(False)
    if registered:
        register_states(model)
    return model


class Oracle:
    """The stock model over its stock cache: a prefill, then one token at a time.

    A text that goes on from another one is fed from a copy of that one's cache.
    """

    def __init__(self, model: PreTrainedModel, prompt: Sequence[int]) -> None:
        self.model, self._start, cache = model, len(prompt) - 1, stock_cache(model)
        if self._start:
            with torch.inference_mode():
                feed_tokens(model, torch.tensor(prompt[:-1]), cache, 1)
        self._known: dict[tuple[int, ...], tuple[Tensor, DynamicCache]] = {
            tuple(prompt[:-1]): (torch.empty(0), cache)
        }

    def row(self, text: Sequence[int]) -> Tensor:
        """[V] logits after a text that begins with the prompt."""
        return self._fed(tuple(text))[0]

    def rows(self, text: Sequence[int]) -> Tensor:
        """[n, V] logits after each token from the prompt's last on."""
        ends = range(self._start + 1, len(text) + 1)
        return torch.stack([self.row(text[:end]) for end in ends])

    @torch.inference_mode()
    def _fed(self, text: tuple[int, ...]) -> tuple[Tensor, DynamicCache]:
        if text not in self._known:
            cache = copy.deepcopy(self._fed(text[:-1])[1])
            out = feed_tokens(self.model, torch.tensor(text[-1:]), cache, 1, len(text) - 1)
            self._known[text] = out.logits[0, -1].clone(), cache
        return self._known[text]
