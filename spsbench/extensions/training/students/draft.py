"""A draft model: a smaller causal model over the same tokens.

It may begin as a part of the target: some layers (`keep_layers`), half of their heads and channels,
attention to the newest tokens only (`prune_and_window`).
"""

import copy
from collections.abc import Iterator
from inspect import signature
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from spsbench.engines.eager import UnsupportedModelError
from spsbench.engines.session.layer_skip import layers_of, select_layers
from spsbench.engines.session.masks import SLIDING
from spsbench.errors import DataError, MissingError, UsageError, WriteError, first_line
from spsbench.extensions.training.batches import TeacherOutput, TextBatch
from spsbench.extensions.training.students.student import (
    Student,
    StudentPrediction,
    select_continuation,
)
from spsbench.models.folder import local_folder
from spsbench.models.loader import load_model
from spsbench.models.third_party import silence, translate_errors
from spsbench.models.tokenizers import check_same_tokens, load_tokenizer
from spsbench.settings.models import ModelSpec

MAX_DRAFT = 8
PROJECTIONS = (*(f"self_attn.{n}" for n in "qkvo"), *(f"mlp.{n}" for n in ("gate", "up", "down")))
UP = "mlp.up_proj.weight"
SIZES = (
    *("num_hidden_layers", "hidden_size", "n_layer", "n_embd", "sliding_window"),
    *("intermediate_size", "num_attention_heads", "num_key_value_heads"),
)


class DraftStudent(Student):
    """A draft model in training; one forward pass predicts for all depths.

    A draft model reads the tokens before a position, whether the target or a draft wrote them.
    """

    network: PreTrainedModel
    drafter = "model"
    rate = 1e-3
    needs_target = False

    def __init__(self, network: PreTrainedModel, tokenizer: Any, vocab: int) -> None:
        self.network, self.depth, self.most = network, 1, MAX_DRAFT
        self._tokenizer, self._vocab = tokenizer, vocab
        network.requires_grad_(True)

    @property
    def passes(self) -> int:
        return len(layers_of(self.network)[2])

    def predict(
        self, batch: TextBatch, output: TeacherOutput, depth: int
    ) -> Iterator[StudentPrediction]:
        """Yield the same prediction, of all rows that predict a continuation, `depth` times."""
        rows = torch.arange(batch.ids.numel(), device=batch.ids.device)
        at, target_rows = select_continuation(batch, rows)
        out = self.network(input_ids=batch.ids, use_cache=False)
        logits = out.logits[..., : self._vocab].flatten(0, 1)[at]
        yield from repeat(StudentPrediction(target_rows, logits), depth)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write a copy in `dtype`, and the tokenizer; WriteError: a system call failed."""
        model = copy.deepcopy(self.network).to(dtype)
        model.config.dtype = dtype
        try:
            with silence():
                model.save_pretrained(folder)
                self._tokenizer.save_pretrained(folder)
        except OSError as error:
            raise WriteError.of(error, folder) from error
        except SafetensorError as error:  # raised by safetensors for a failed system call
            raise WriteError.of(OSError(first_line(error)), folder) from error

    def describe(self) -> dict[str, Any]:
        config = self.network.config.get_text_config()
        sizes = {name: getattr(config, name, None) for name in SIZES}
        return super().describe() | {n: size for n, size in sizes.items() if isinstance(size, int)}


def keep_layers(target: PreTrainedModel, layers: int | None) -> PreTrainedModel:
    """Return a float32 copy of the target with evenly spaced layers, the first and the last too.

    Initialises a draft model as Sanh et al. 2019 (arXiv 1910.01108, section 3) do; one layer is the
    first. None: a fifth of the layers, rounded down, or one. UsageError: no fewer than the target
    has, or it has one. DataError: its layers are unknown.
    """
    try:
        count = len(layers_of(target)[2])
    except UnsupportedModelError as error:
        raise DataError(f"{error}: expected one. Begin with another model: `start`") from error
    if count < 2:
        raise UsageError(
            f"a draft model cut from a target of {count} layer: expected 2 layers or more. Begin "
            "with another model: `start`"
        )
    if layers is not None and layers >= count:
        raise UsageError(
            f"`layers` is {layers}: expected 1..{count - 1}, fewer than the target has"
        )
    draft_layers = max(1, count // 5) if layers is None else layers
    chosen = sorted(
        {round(i * (count - 1) / max(draft_layers - 1, 1)) for i in range(draft_layers)}
    )
    draft = copy.deepcopy(target)
    select_layers(draft, chosen)
    return draft.float()


def prune_and_window(model: PreTrainedModel, prune: bool, window: int | None) -> PreTrainedModel:
    """Return a float32 copy of `model` that is fast on long texts (SPIRe, arXiv 2504.06419).

    Its layers attend to the newest `window` tokens (None: as before); for that a Llama without
    biases becomes a Mistral, its twin with a window. `prune` halves heads and MLP channels; hidden
    states keep their width. UsageError: the architecture allows no window, or is not pruned here.
    """
    config, state = copy.deepcopy(model.config), model.state_dict()
    if window and config.model_type == "llama" and not (config.attention_bias or config.mlp_bias):
        settings = config.to_dict()
        names = signature(MistralConfig).parameters.keys() & settings.keys() - {"architectures"}
        config = MistralConfig(**{name: settings[name] for name in names})
    sizes = config.get_text_config()
    options: dict[str, Any] = {"sliding_window": window, "use_sliding_window": True}
    options["layer_types"] = [SLIDING] * sizes.num_hidden_layers
    options = {name: options[name] for name in options.keys() & signature(type(sizes)).parameters}
    if window and "sliding_window" not in options:
        raise UsageError(
            f"`window` with a model of type {config.model_type}: expected an architecture with a "
            "window, such as Llama without biases, Mistral, Qwen or Gemma. Leave it out"
        )
    try:
        sizes.update(options if window else {})
        if prune:
            _halve(sizes, state)
        with silence(), torch.random.fork_rng():
            draft: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, attn_implementation=model.config._attn_implementation
            )
        draft.load_state_dict(state)
    except (AttributeError, KeyError, RuntimeError) as error:
        raise UsageError(
            f"`pruned` with a target of type {config.model_type} ({first_line(error)}): expected "
            "the sizes and projections of a Llama. Leave it out"
        ) from error
    draft.generation_config = model.generation_config
    return draft.float().eval()


def _halve(sizes: PreTrainedConfig, state: dict[str, Any]) -> None:
    """Halve sizes and weights in place: heads (by norm of O V, a group as one) and channels."""
    groups, queries = sizes.num_key_value_heads, sizes.num_attention_heads
    shared = queries // groups
    sizes.head_dim = getattr(sizes, "head_dim", None) or sizes.hidden_size // queries
    sizes.num_key_value_heads = -(-groups // 2)
    sizes.num_attention_heads = sizes.num_key_value_heads * shared
    sizes.intermediate_size = -(-sizes.intermediate_size // 2)
    for layer in [name.removesuffix(UP) for name in state if name.endswith(UP)]:
        _, _, v, o, gate, up, down = (state[f"{layer}{name}_proj.weight"] for name in PROJECTIONS)
        v, o = v.unflatten(0, (groups, 1, -1)), o.unflatten(1, (groups, shared, -1))
        writes = (o.permute(1, 2, 0, 3) @ v).flatten(1).norm(dim=1)
        widths = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        for name in PROJECTIONS:
            norms = widths if "mlp" in name else writes
            kept = norms.topk(-(-len(norms) // 2)).indices.sort().values
            dim = int(name.endswith(("o", "down")))
            for key in (f"{layer}{name}_proj.weight", f"{layer}{name}_proj.bias")[: 2 - dim]:
                if key in state:
                    parts = state[key].unflatten(dim, (len(norms), -1)).index_select(dim, kept)
                    state[key] = parts.flatten(dim, dim + 1)


def open_start(start: Path, seed: int, tokenizer: Any, vocab: int) -> PreTrainedModel:
    """Return a draft model in float32, with random weights where the folder has no safetensors.

    `start` is the folder, or a bundled name, and `seed` that of random weights. `tokenizer` and
    `vocab` are the target's. MissingError: no config.json. DataError: pickled weights alone, fewer
    logits than `vocab`, or a tokenizer.json of other tokens than the target's.
    """
    folder = local_folder(str(start)) or start
    if not (folder / "config.json").is_file():
        raise MissingError(
            f"no config.json ({folder}): expected a model's folder, or the config alone. Check "
            "`start`"
        )
    if (folder / "tokenizer.json").is_file():
        check_same_tokens(tokenizer, load_tokenizer(folder, trust_remote_code=False))
    if not (is_stored := any(folder.glob("*.safetensors"))) and any(folder.glob("*.bin")):
        raise DataError(f"pickled weights ({folder}): expected safetensors, or a config alone")
    if is_stored:
        spec = ModelSpec("", device="cpu", dtype="float32")
        model: PreTrainedModel = load_model(folder, spec)
    else:
        with translate_errors("the model", folder), silence(), torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(folder, local_files_only=True)
            )
        model.generation_config = GenerationConfig()
    rows = model.get_output_embeddings().weight.shape[0]
    if rows < vocab:
        raise DataError(
            f"{rows} rows of output ({folder}): expected {vocab}, the target's tokens. Begin with "
            "a model of the target's family"
        )
    return model.float().eval()
