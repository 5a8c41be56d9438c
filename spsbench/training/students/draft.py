"""A draft model: a smaller causal model over the same tokens."""

import copy
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from spsbench.engines.eager import UnsupportedModelError
from spsbench.engines.session.layer_skip import PER_LAYER, layers_of
from spsbench.errors import DataError, UsageError, WriteError, first_line
from spsbench.models.third_party import silent, translated
from spsbench.training.students.eagle_unroll import in_layers
from spsbench.training.students.student import (
    Batch,
    Prediction,
    Student,
    TeacherOutput,
    wanted_rows,
)

WATCHED = 8


class DraftStudent(Student):
    """All depths are one pass: a draft model is fed the tokens before it, whoever wrote them."""

    network: PreTrainedModel
    drafter = "model"
    rate = 1e-3
    recomputes = True

    def __init__(self, network: PreTrainedModel, tokenizer: Any, vocab: int) -> None:
        self.network, self.depth, self.most = network, 1, WATCHED
        self._tokenizer, self._vocab = tokenizer, vocab
        network.requires_grad_(True)

    @property
    def passes(self) -> int:
        """Its layers."""
        return len(layers_of(self.network)[2])

    def reads(self, layers: int) -> Sequence[int]:
        """None: it is fed tokens."""
        return ()

    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        """The same guess for every depth."""
        rows = torch.arange(batch.ids.numel(), device=batch.ids.device)
        at, kept = wanted_rows(batch, rows)
        with in_layers(self.network, self.recompute):
            out = self.network(input_ids=batch.ids, use_cache=False)
        logits = out.logits[..., : self._vocab].flatten(0, 1)[at]
        yield from repeat(Prediction(kept, logits), depth)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """As transformers writes a model, with its tokenizer."""
        made = copy.deepcopy(self.network).to(dtype)
        made.config.dtype = dtype
        try:
            with silent():
                made.save_pretrained(folder)
                self._tokenizer.save_pretrained(folder)
        except OSError as error:
            raise WriteError.of(error, folder) from error
        except SafetensorError as error:  # what it makes of a system call that failed
            raise WriteError.of(OSError(first_line(error)), folder) from error

    def describe(self) -> dict[str, Any]:
        """Its size."""
        config = self.network.config.get_text_config()
        sizes = {
            name: getattr(config, name)
            for name in ("num_hidden_layers", "hidden_size", "n_layer", "n_embd")
            if isinstance(getattr(config, name, None), int)
        }
        return {**super().describe(), **sizes}


def cut(target: PreTrainedModel, layers: int | None) -> PreTrainedModel:
    """A copy of the target with some of its layers, evenly apart, first and last among them.

    Sanh et al. 2019 (arXiv 1910.01108, section 3) begin so; by default a fifth is kept.

    Raises:
        UsageError: more layers than it has.
        DataError: a model whose layers cannot be told apart.
    """
    try:
        *_, found = layers_of(target)
    except UnsupportedModelError as error:
        raise DataError(f"{error}: expected one. Begin with another model: --from") from error
    count = len(found)
    check_layers(layers, count)
    kept = max(1, count // 5) if layers is None else layers
    chosen = sorted({round(i * (count - 1) / max(kept - 1, 1)) for i in range(kept)})
    made = copy.deepcopy(target)
    parent, name, mine = layers_of(made)
    setattr(parent, name, nn.ModuleList(mine[i] for i in chosen))
    config = made.config.get_text_config()
    for each in PER_LAYER:
        if values := getattr(config, each, None):
            setattr(config, each, [values[i] for i in chosen])
    config.num_hidden_layers = len(chosen)
    for number, layer in enumerate(getattr(parent, name)):
        for part in layer.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx = number
    return made.float()


def check_layers(layers: int | None, count: int) -> None:
    """Refuse to cut `layers` from a target of `count` layers where that is no cut.

    Raises:
        UsageError: with what can be cut.
    """
    if count < 2:
        raise UsageError(
            f"a draft model cut from a target of {count} layer: expected 2 layers or more. Begin "
            "with another model: --from"
        )
    if layers is not None and layers >= count:
        raise UsageError(
            f"--layers is {layers}: expected 1..{count - 1}, fewer than the target has"
        )


def from_folder(folder: Path, seed: int, vocab: int, load: Any) -> PreTrainedModel:
    """A model to begin with: its weights, or those of a seed where there is a config.json alone.

    Args:
        folder: of the model.
        seed: of weights.
        vocab: tokens that it must have rows for.
        load: reads a model's folder.

    Raises:
        DataError: a model that cannot be read, or with fewer rows than the target has tokens.
    """
    if any(folder.glob("*.safetensors")):
        made: PreTrainedModel = load(folder)
    else:
        with translated("the model", folder), silent(), torch.random.fork_rng():
            torch.manual_seed(seed)
            made = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(folder, local_files_only=True)
            )
        made.generation_config = GenerationConfig()
    rows = made.get_output_embeddings().weight.shape[0]
    if rows < vocab:
        raise DataError(
            f"{rows} rows of output ({folder}): expected {vocab}, the target's tokens. Begin with "
            "a model of the target's family"
        )
    return made.float().eval()
