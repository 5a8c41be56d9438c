"""Models of a given shape with random weights: their timing is real, their output means nothing."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from spsbench.errors import DataError, MissingError
from spsbench.models.boundary import silent, translated
from spsbench.models.description import check_config, read_config
from spsbench.models.devices import find_device
from spsbench.models.folder import expanded
from spsbench.models.precision import check_dtype
from spsbench.settings.models import BUNDLED, FETCHED, ModelSpec, fetched_folder

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"[0-9]+")


class IdTokenizer:
    """Token ids written as numbers, for models that have no tokenizer: `17 4 230`."""

    name_or_path = "numbers"
    bos_token_id = None

    def encode(self, text: str, *, split_special_tokens: bool = True) -> list[int]:
        """The numbers in `text`."""
        return [int(number) for number in _NUMBER.findall(text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The ids, each after a space."""
        return "".join(f" {i}" for i in token_ids)


def locate_shape(ref: ModelSpec, *, offline: bool) -> Path:
    """The folder with the `config.json` of a bundled model, a folder, a file, or a hub id.

    Raises:
        MissingError: nothing of that name, here or in reach.
    """
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
        found = hf_hub_download(
            ref.id, "config.json", revision=ref.revision, local_files_only=offline
        )
    except Exception as error:  # the client raises kinds of several packages
        raise MissingError(
            f"no config.json of {ref.id} ({type(error).__name__}): expected a folder, a hub id "
            "that is cached or in reach, or nano. Check the name"
        ) from error
    log.info(f"shape of {ref.id}: {found}")
    return Path(found).parent


def check_shape(folder: Path) -> None:
    """Refuse what is no decoder-only model or has absurd sizes.

    Raises:
        DataError: with the key that is wrong.
    """
    check_config(read_config(folder), folder, trust_remote_code=False)


def model_of_shape(
    folder: Path, *, device: str, dtype: str, attention: str | None, seed: int
) -> PreTrainedModel:
    """A model as `config.json` describes it, its weights drawn from `seed`; in eval mode.

    Raises:
        UsageError: no such dtype.
        DataError, OutOfMemoryError: it cannot be made.
    """
    place = find_device(device)
    check_dtype(dtype)
    if dtype == "auto":
        dtype = "float32" if place.type == "cpu" else "bfloat16"
    number: torch.dtype = getattr(torch, dtype)
    with translated("the shape", folder), silent(), torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)  # the CPU's: weights are drawn there
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        options = {} if attention is None else {"attn_implementation": attention}
        model = AutoModelForCausalLM.from_config(config, dtype=number, **options)
        if not isinstance(model, PreTrainedModel):
            raise DataError(f"{type(model).__name__} ({folder}): expected a language model")
        model.config.name_or_path = str(folder)
        return model.requires_grad_(False).to(place).eval()
