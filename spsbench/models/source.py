"""Sources of a cell's models: checkpoints, or the shapes of a config with random weights.

Equal sources give the same models, so a source is a key of the loaded models.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from spsbench.checkpoints.config import check_config, expanded, read_config
from spsbench.engines.eager import rows_of
from spsbench.engines.quantization.layers import quantise
from spsbench.errors import DataError, MissingError
from spsbench.models.devices import check_dtype, find_device
from spsbench.models.folder import check_folder, locate
from spsbench.models.gguf.blocks import check_blocks, lay_blocks
from spsbench.models.loader import load_model, load_shared
from spsbench.models.shape import shaped_folder
from spsbench.models.third_party import silent, translated
from spsbench.models.tokenizers import check_same, common_size, difference, eos_ids, load_tokenizer
from spsbench.settings.execution import Access
from spsbench.settings.models import (
    BLOCKS,
    BUNDLED,
    FETCHED,
    SHAPE,
    ModelSpec,
    fetched_folder,
    parse_shape,
)

log = logging.getLogger(__name__)
_NUMBER = re.compile(r"[0-9]+")


def source_of(spec: ModelSpec, access: Access, *, seed: int = 0) -> "Source":
    """Return the source of a model; `seed` is that of random weights."""
    how = replace(spec, id="", revision=None, engine=ModelSpec("").engine)
    return Shapes(how, access, seed) if spec.random else Checkpoints(how, access)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The source of trained models: bundled, in folders, or at a hub."""

    how: ModelSpec  # without a name: models that are run in one way have one source
    access: Access

    def locate(self, ref: ModelSpec) -> Path:
        """Return the model's folder, checked as far as possible without loading."""
        folder = locate(ref, self.access)
        check_folder(folder, ref, self.access)
        if self.how.quantised == BLOCKS:
            check_blocks(folder)
        return folder

    def tokenizer(self, folder: Path) -> Any:
        """Load the tokenizer beside the weights."""
        return load_tokenizer(folder, trust_remote_code=self.how.trust_remote_code)

    def difference(self, target: Any, draft: Any) -> str | None:
        """Compare vocabularies, rules and the tokens of some texts."""
        return difference(target, draft)

    def check_same(self, target: Any, draft: Any) -> None:
        """Refuse a draft whose vocabulary, rules or tokens of some texts differ."""
        check_same(target, draft)

    def model(self, folder: Path, *, mapped: bool = False) -> PreTrainedModel:
        """Load the weights of the folder, in eval mode; over several ranks, this one's share.

        `mapped`: its tensors may be parts of its files, until `loader.settle` copies them.
        """
        if self.how.ranks > 1:
            return load_shared(folder, self.how, self.access)
        model = load_model(folder, self.how, self.access, mapped=mapped)
        return rounded(model, self.how.quantised, folder)

    def vocab_size(self, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any) -> int:
        """Return the size common to the tokenizer and both models."""
        return common_size(rows_of(target), rows_of(draft), tokenizer)

    def eos(self, folder: Path, tokenizer: Any) -> frozenset[int]:
        """Return every id that the model's files name as the end of a text."""
        return eos_ids(folder, tokenizer)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The source of random weights in the shape of a `config.json`: for timing only."""

    how: ModelSpec  # as of `Checkpoints`
    access: Access
    seed: int

    def locate(self, ref: ModelSpec) -> Path:
        """Return the folder of the `config.json`, checked."""
        folder = locate_shape(ref, self.access)
        check_config(read_config(folder), folder, trust_remote_code=False)
        return folder

    def tokenizer(self, folder: Path) -> Any:
        """Return a tokenizer that writes ids as numbers."""
        return IdTokenizer()

    def difference(self, target: Any, draft: Any) -> str | None:
        """Return None: numbers are the same for all."""
        return None

    def check_same(self, target: Any, draft: Any) -> None:
        """Accept every pair: numbers are the same for all."""

    def model(self, folder: Path, *, mapped: bool = False) -> PreTrainedModel:
        """Make the model with weights drawn from the seed."""
        model = model_of_shape(folder, self.how, self.seed)
        return rounded(model, self.how.quantised, folder)

    def vocab_size(self, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any) -> int:
        """Return the smaller size of the two."""
        return min(rows_of(target), rows_of(draft))

    def eos(self, folder: Path, tokenizer: Any) -> frozenset[int]:
        """Return no id: a random text has no end."""
        return frozenset()


Source = Checkpoints | Shapes
"""The steps to a model and its tokenizer; every step may raise an `SpsError`."""


def rounded(model: PreTrainedModel, name: str | None, folder: Path) -> PreTrainedModel:
    """Quantise the linear layers of `model` to the format `name`; None keeps them."""
    if name == BLOCKS:
        lay_blocks(model, folder)
        return model
    if name is not None and not quantise(model, name):
        raise DataError(
            f"{type(model).__name__} has no linear layers of the stock kind ({folder}): expected "
            f"some for `weights` {name}. Take the weights as they are"
        )
    return model


class IdTokenizer:
    """A tokenizer that writes ids as numbers, for models that have none: `17 4 230`."""

    name_or_path = "numbers"
    bos_token_id = None

    def encode(self, text: str, *, split_special_tokens: bool = True) -> list[int]:
        """Return the numbers in `text`; of other text its bytes, one id each."""
        words = text.split()
        if all(map(_NUMBER.fullmatch, words)):
            return list(map(int, words))
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Write the ids, each after a space."""
        return "".join(f" {i}" for i in token_ids)


def locate_shape(ref: ModelSpec, access: Access) -> Path:
    """Return the folder with the `config.json` of a bundled model, a folder, a file, or a hub id.

    That of `shape:512x8:MODEL` is in the user's cache.
    """
    if ref.id.startswith(SHAPE):
        shape, of = parse_shape(ref.id)
        return shaped_folder(locate_shape(replace(ref, id=of or ""), access), shape)
    path = BUNDLED.get(ref.id) or expanded(ref.id)
    if ref.id in FETCHED:
        path = fetched_folder(ref.id)
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
    """Make a model by its `config.json`, its weights drawn from `seed`; in eval mode."""
    place, dtype = find_device(how.device), how.dtype
    check_dtype(dtype)
    if dtype == "auto":
        dtype = "float32" if place.type == "cpu" else "bfloat16"
    number: torch.dtype = getattr(torch, dtype)
    with translated("the shape", folder), silent(), torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)  # the CPU's: weights are drawn there
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        options = {} if how.attention is None else {"attn_implementation": how.attention}
        model = AutoModelForCausalLM.from_config(config, dtype=number, **options)
        if not isinstance(model, PreTrainedModel):
            raise DataError(f"{type(model).__name__} ({folder}): expected a language model")
        model.config.name_or_path = str(folder)
        return model.requires_grad_(False).to(place).eval()
