"""Sources of a cell's models: checkpoints, or the shapes of a config with random weights.

Equal sources give the same models, so a source is a key of the loaded models.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spsbench.checkpoints.config import check_config, expand_path, read_config
from spsbench.engines.quantization.layers import quantise
from spsbench.errors import DataError, MissingError
from spsbench.models.devices import check_dtype, find_device
from spsbench.models.folder import bundled_folder, check_folder, locate
from spsbench.models.gguf.blocks import check_blocks, lay_blocks
from spsbench.models.loader import load_model, load_shared
from spsbench.models.shape import shaped_folder
from spsbench.models.third_party import open_config, silence, translate_errors
from spsbench.models.tokenizers import IdTokenizer, load_tokenizer
from spsbench.settings.execution import Access
from spsbench.settings.models import BLOCKS, SHAPE, ModelSpec, parse_shape

log = logging.getLogger(__name__)


def source_of(spec: ModelSpec, access: Access, *, seed: int = 0) -> "ModelSource":
    """Return the source of a model, whose name and engine it lacks; `seed` draws random weights."""
    how = replace(spec, id="", revision=None, engine=ModelSpec("").engine)
    return ModelSource(how, access, seed if spec.random else 0)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The steps to a model and its tokenizer.

    A model is trained, and bundled, in a folder, or at a hub; or it has random weights in the shape
    of a `config.json`, for timing only.
    """

    how: ModelSpec  # without a name: models that are run in one way have one source
    access: Access
    seed: int  # seed of random weights

    def locate(self, ref: ModelSpec) -> Path:
        """Return the folder of `ref`, fetched if need be, its files checked; SpsError: unusable."""
        if self.how.random:
            folder = locate_shape(ref, self.access)
            check_config(read_config(folder), folder, trust_remote_code=False)
            return folder
        folder = locate(ref, self.access)
        check_folder(folder, ref, self.access)
        if self.how.quantised == BLOCKS:
            check_blocks(folder)
        return folder

    def tokenizer(self, folder: Path) -> Any:
        """Load the tokenizer next to the weights; random weights have numbers for tokens."""
        if self.how.random:
            return IdTokenizer()
        return load_tokenizer(folder, trust_remote_code=self.how.trust_remote_code)

    def model(self, folder: Path, *, mapped: bool = False) -> PreTrainedModel:
        """Load or draw the weights, in eval mode, quantised if asked; over ranks, this one's share.

        `mapped`: its tensors may be parts of its files, until `loader.materialise` copies them.
        SpsError: damaged, not whole, no such device or dtype, or not to be quantised.
        """
        if self.how.ranks > 1:
            return load_shared(folder, self.how, self.access)
        if self.how.random:
            model = model_of_shape(folder, self.how, self.seed)
        else:
            model = load_model(folder, self.how, self.access, mapped=mapped)
        return quantise_linears(model, self.how.quantised, folder)


def quantise_linears(model: PreTrainedModel, name: str | None, folder: Path) -> PreTrainedModel:
    """Quantise `model`'s linear layers and head to `name` in place, and return it; None: no change.

    Layers of other kinds stay. `BLOCKS`: the blocks kept in `folder`, else MissingError. DataError:
    no layer of the stock kind, or blocks that do not fit the model.
    """
    if name == BLOCKS:
        lay_blocks(model, folder)
        return model
    if name is not None and not quantise(model, name):
        raise DataError(
            f"{type(model).__name__} has no linear layers of the stock kind ({folder}): expected "
            f"some for `weights` {name}. Take the weights as they are"
        )
    return model


def locate_shape(ref: ModelSpec, access: Access) -> Path:
    """Return the folder of a model's `config.json`, here or from the hub; MissingError: none is.

    That of `shape:512x8:MODEL` is written to the user's cache. The path of a fetched one is logged.
    """
    if ref.id.startswith(SHAPE):
        shape, of = parse_shape(ref.id)
        return shaped_folder(locate_shape(replace(ref, id=of or ""), access), shape)
    path = bundled_folder(ref.id) or expand_path(ref.id)
    folder = path.parent if path.name == "config.json" else path
    if (folder / "config.json").is_file():
        return folder
    if path.exists():
        raise MissingError(f"no config.json ({path}): expected one of a model. Check the path")
    from huggingface_hub import hf_hub_download

    try:
        config_path = hf_hub_download(
            ref.id, "config.json", revision=ref.revision, local_files_only=access.offline
        )
    except Exception as error:  # the client raises kinds of several packages
        raise MissingError(
            f"no config.json of {ref.id} ({type(error).__name__}): expected a folder, a hub id "
            "that is cached or in reach, or nano. Check the name"
        ) from error
    log.info(f"shape of {ref.id}: {config_path}")
    return Path(config_path).parent


def model_of_shape(folder: Path, how: ModelSpec, seed: int) -> PreTrainedModel:
    """Make a model by its `config.json`, of random weights, on its device in eval mode.

    Dtype `auto` is float32 on a CPU, else bfloat16. A GPU draws other weights from `seed`.
    DataError: no language model. UsageError, UnavailableError: no such dtype or device.
    """
    place, dtype = find_device(how.device), how.dtype
    check_dtype(dtype)
    if dtype == "auto":
        dtype = "float32" if place.type == "cpu" else "bfloat16"
    number: torch.dtype = getattr(torch, dtype)
    on_gpu = place.type == "cuda"  # a processor draws a billion in half a minute
    drawn_on = place if on_gpu else torch.device("cpu")
    forked = torch.random.fork_rng([place] if on_gpu else [])
    with translate_errors("the shape", folder), silence(), forked, drawn_on:
        (torch.manual_seed if on_gpu else torch.default_generator.manual_seed)(seed)
        config = open_config(folder)
        options = {} if how.attention is None else {"attn_implementation": how.attention}
        model = AutoModelForCausalLM.from_config(config, dtype=number, **options)
        if not isinstance(model, PreTrainedModel):
            raise DataError(f"{type(model).__name__} ({folder}): expected a language model")
        model.config.name_or_path = str(folder)
        return model.requires_grad_(False).to(place).eval()
