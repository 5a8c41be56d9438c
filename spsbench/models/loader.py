"""A checked folder to a model and a tokenizer in memory, and text to the model's tokens."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.distributed import DistributedConfig

from spsbench.engines.origins import mark, stamp
from spsbench.errors import DataError
from spsbench.models.boundary import silent, translated, without_panics
from spsbench.models.chat import render
from spsbench.models.description import NEUTRAL
from spsbench.models.devices import find_device
from spsbench.models.jsonfile import read_object
from spsbench.models.lazy import lazy_tensors
from spsbench.models.normalizers import check_growth
from spsbench.models.precision import check_dtype, choose, warn_of_memory
from spsbench.models.shareable import check_shareable
from spsbench.models.soundness import check_complete, check_sound_once
from spsbench.models.weights import weight_files


def load_model(
    folder: Path,
    *,
    device: str,
    dtype: str,
    attention: str | None,
    trust_remote_code: bool,
    allow_pickle: bool,
    ranks: int = 1,
    mapped: bool = False,
) -> transformers.PreTrainedModel:
    """The model in `folder`, ready to be asked: in eval mode, on its device, without gradients.

    Args:
        folder: one that `check_folder` has passed.
        device: as `find_device` reads it.
        dtype: `auto` (the checkpoint's on an accelerator, float32 on a CPU) or one of `DTYPES`.
        attention: transformers' name of an attention implementation; None = its choice.
        trust_remote_code: run the model's own Python code.
        allow_pickle: read pickled weights where there are no safetensors.
        ranks: how many of them share its weights; each calls this, and reads its share alone.
        mapped: tensors may be parts of the files until `lazy.settle` copies them.

    Raises:
        UnavailableError: no such device.
        UsageError: no such dtype.
        OutOfMemoryError: the memory did not suffice.
        DataError: a model that cannot be loaded, is incomplete, or has numbers that are not finite.
    """
    place = find_device(device)
    check_dtype(dtype)
    files = weight_files(folder, allow_pickle=allow_pickle)
    with translated("the model", folder), silent():
        read = [folder / "config.json", *files]
        how = f"{dtype} {attention} {_code()}"
        before = stamp(read, how)
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
        number = choose(dtype, place, files)
        if ranks == 1:
            warn_of_memory(files, number, place)
        options: dict[str, Any] = {
            "dtype": number,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # `check_complete` names them
        }
        if attention is not None:
            options["attn_implementation"] = attention
        kind = plain_class(config)
        if ranks > 1:
            check_shareable(kind, config, ranks, folder)
            options["distributed_config"] = DistributedConfig(tp_size=ranks)
        if kind is None or trust_remote_code or files[0].suffix != ".safetensors":
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=files[0].suffix == ".safetensors",
                trust_remote_code=trust_remote_code,
                **options,
            )
        else:
            parts = mapped and place.type == "cpu" and ranks == 1
            tensors = lazy_tensors(files, widen=number == torch.float32, mapped=parts)
            model, info = kind.from_pretrained(None, config=config, state_dict=tensors, **options)
            if (folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(folder)
        check_complete(info, folder)
        model.requires_grad_(False)
        model = (model.to(place) if ranks == 1 else model).eval()
        model.config.name_or_path = str(folder)
        # What is remembered of files is of them alone, and they must not have changed meanwhile.
        plain = ranks == 1 and kind is not None and not trust_remote_code
        plain = plain and stamp(read, how) == before
        check_sound_once(model, folder, before if plain else None)
        if plain:
            mark(model, before)
    return model


@cache
def _code() -> str:
    """A digest of what reads weights and looks at them."""
    paths = [Path(__file__).with_name(name) for name in ("lazy.py", "loader.py", "soundness.py")]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def plain_class(config: transformers.PreTrainedConfig) -> Any:
    """The class that loads tensor by tensor; None for packed weights and parts of larger models."""
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    packed = getattr(config, "quantization_config", None) is not None
    plain = isinstance(kind, type) and getattr(kind, "config_class", None) is type(config)
    return kind if plain and not packed else None


def load_tokenizer(
    folder: Path, *, trust_remote_code: bool
) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer in `folder`.

    Raises:
        DataError: it cannot be read.
    """
    check_growth(folder)
    with translated("the tokenizer", folder), silent():
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )


def encode(tokenizer: transformers.PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a prompt; names of special tokens in it are ordinary text.

    A BOS is added where the tokenizer adds one by itself, and where the prompt is blank.

    Raises:
        DataError: NUL, a lone surrogate, or a blank prompt without a BOS to stand in.
    """
    if "\0" in text:
        raise DataError(
            f"a NUL at character {text.index(chr(0))} (prompt): expected text. Remove it"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"a lone surrogate at character {error.start} (prompt): expected Unicode text. "
            "Save the prompt as UTF-8"
        ) from error
    with translated("the tokenizer", tokenizer.name_or_path), silent(), without_panics():
        ids = [int(i) for i in tokenizer.encode(text, split_special_tokens=True)]
    if text.strip() and ids:
        return ids
    start = tokenizer.bos_token_id
    if start is None:
        raise DataError(
            "a blank prompt (prompt): expected text, since this tokenizer has no BOS token. "
            "Give a prompt"
        )
    return ids if ids[:1] == [start] else [start, *ids]


def encode_chat(
    tokenizer: transformers.PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, object]],
    *,
    instead: str = "Ask with --chat off",
) -> list[int]:
    """The tokens of a chat up to where the model answers, by the model's own template.

    Args:
        instead: what a user can do where there is no chat.

    Raises:
        DataError: no template, or one that fails or does not end.
    """
    if not tokenizer.chat_template:
        raise DataError(f"no chat template (tokenizer): expected a chat model. {instead}")
    with translated("the chat template", tokenizer.name_or_path), silent():
        template = tokenizer.get_chat_template()
        controls = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
        names = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
        ids: list[int] = []
        for span in render(template, messages, names, controls, instead):
            with without_panics():
                ids += tokenizer.encode(
                    span.text, add_special_tokens=False, split_special_tokens=span.plain
                )
    if not ids:
        raise DataError("an empty chat (prompt): expected a message. Give a prompt")
    return ids


def eos_ids(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase
) -> frozenset[int]:
    """Every id that ends a text: of the config, the generation config and the tokenizer."""
    found: set[int] = set()
    configs = (model.config, model.config.get_text_config(), model.generation_config)
    for ids in (*(getattr(c, "eos_token_id", None) for c in configs), tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, list | tuple) else [ids] if ids is not None else [])
    return frozenset(found)


def hidden_settings(folder: Path) -> dict[str, Any]:
    """Settings in `generation_config.json` that change a law, and that spsbench does not apply.

    Raises:
        DataError: the file is there and is no JSON object.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    given = read_object(path, 1 << 20)
    return {
        name: given[name]
        for name, neutral in NEUTRAL.items()
        if given.get(name) is not None and given[name] not in neutral
    }
