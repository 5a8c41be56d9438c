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
    """A draft model in training; one forward pass predicts for all depths.

    A draft model reads the tokens before a position, whether the target or a draft wrote them.
    """

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
        """Return the number of layers of the draft model."""
        return len(layers_of(self.network)[2])

    def reads(self, layers: int) -> Sequence[int]:
        """Return no layers, since a draft model reads tokens only."""
        return ()

    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        """Yield the same prediction for every depth."""
        rows = torch.arange(batch.ids.numel(), device=batch.ids.device)
        at, kept = wanted_rows(batch, rows)
        with in_layers(self.network, self.recompute):
            out = self.network(input_ids=batch.ids, use_cache=False)
        logits = out.logits[..., : self._vocab].flatten(0, 1)[at]
        yield from repeat(Prediction(kept, logits), depth)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model and its tokenizer in transformers' format."""
        made = copy.deepcopy(self.network).to(dtype)
        made.config.dtype = dtype
        try:
            with silent():
                made.save_pretrained(folder)
                self._tokenizer.save_pretrained(folder)
        except OSError as error:
            raise WriteError.of(error, folder) from error
        except SafetensorError as error:  # raised by safetensors for a failed system call
            raise WriteError.of(OSError(first_line(error)), folder) from error

    def describe(self) -> dict[str, Any]:
        """Return the sizes of the draft model."""
        config = self.network.config.get_text_config()
        sizes = {
            name: getattr(config, name)
            for name in ("num_hidden_layers", "hidden_size", "n_layer", "n_embd")
            if isinstance(getattr(config, name, None), int)
        }
        return {**super().describe(), **sizes}


def cut(target: PreTrainedModel, layers: int | None) -> PreTrainedModel:
    """Return a copy of the target with evenly spaced layers, the first and the last among them.

    Initialises a draft model as Sanh et al. 2019 (arXiv 1910.01108, section 3) do. By default a
    fifth of the layers is kept.

    Raises:
        UsageError: `layers` is not below the number of layers of the target.
        DataError: the layers of the model cannot be identified.
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
    """Refuse to cut a target of `count` layers to `layers` layers, if that removes none.

    Raises:
        UsageError: no layer would be removed; names the range.
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
    """Return an initial draft model: its weights, or random ones if only config.json is there.

    Args:
        folder: folder of the model.
        seed: seed of random weights.
        vocab: number of tokens that the model must have logits for.
        load: loads the model of a folder.

    Raises:
        DataError: the model cannot be read, or has fewer output rows than the target has tokens.
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
