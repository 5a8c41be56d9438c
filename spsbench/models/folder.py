"""Location of a model's folder, and all checks that need no loading."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spsbench.checkpoints.adapters import read_adapters
from spsbench.checkpoints.config import (
    TOKENIZER_LIMIT,
    check_config,
    embedding_and_layers,
    expand_path,
    read_config,
    refuse_pointer,
)
from spsbench.checkpoints.weights import (
    INPUT_EMBEDDINGS,
    WHOLE,
    TensorHeader,
    read_headers,
    weight_files,
)
from spsbench.errors import DataError, MissingError, PermissionDeniedError, UsageError
from spsbench.models.gguf.header import named_gguf
from spsbench.models.gguf.unpack import unpacked_folder
from spsbench.models.hub import fetch_snapshot
from spsbench.settings.execution import Access
from spsbench.settings.models import BUNDLED, FETCHED, ModelSpec, fetched_folder

NUMBERS = ("F64", "F32", "F16", "BF16")
"""Types of weights that mean the numbers that they hold."""
_TOKENIZERS = """
tokenizer.json tokenizer.model vocab.json vocab.txt spiece.model sentencepiece.bpe.model merges.txt
tokenizer_config.json
"""
log = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[\w.-]{1,96})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def local_folder(name: str) -> Path | None:
    """Return the folder of a bundled model, of a path or of a GGUF file; None: at a hub, if at all.

    A GGUF file is unpacked. SpsError: a path or a bundled model that cannot be used.
    """
    return bundled_folder(name) or _local(name)


def locate(ref: ModelSpec, access: Access) -> Path:
    """Return a model's folder: bundled, a path, a GGUF file's or from the hub; SpsError: none.

    `~` and `$VAR` are expanded; globs and URLs are not. A GGUF file is unpacked into the user's
    cache, once. UsageError: a local folder has a revision. DataError: remote code without a commit.
    """
    if (local := local_folder(ref.id)) is not None:
        if ref.revision is not None:
            raise UsageError(
                f"revision {ref.revision!r} of the folder {ref.id}: expected a hub id with it. "
                "Leave the revision out"
            )
        return local
    if not is_hub_id(ref.id):
        raise _no_such(ref.id)
    folder = fetch_snapshot(ref, access)
    pinned = ref.revision is not None and _COMMIT.fullmatch(ref.revision)
    if ref.trust_remote_code and not pinned and read_config(folder).get("auto_map"):
        raise DataError(
            f"{ref.id} would run its own code at revision {ref.revision or 'main'}, which can "
            "change: expected the 40 digits of a commit. Read the code, then pin it with `revision`"
        )
    return folder


def is_hub_id(name: str) -> bool:
    """Return whether `name` is written as the id of a model at a hub: `ORG/NAME` or `NAME`."""
    return _HUB_ID.fullmatch(name) is not None


def is_bundled_name(name: str) -> bool:
    """Return whether `name` is a bundled model's: neither a path nor a hub id."""
    return name in BUNDLED or name in FETCHED


def bundled_folder(name: str) -> Path | None:
    """Return a bundled or fetched model's folder, None for other names; MissingError: no files."""
    folder = fetched_folder(name) if name in FETCHED else BUNDLED.get(name)
    if folder is None or (folder / "config.json").is_file():
        return folder
    if name in FETCHED:
        raise MissingError(
            f"{name} is not fetched ({folder}): expected it in the cache. "
            f"Run `sps models fetch {name}`"
        )
    raise MissingError(
        f"the bundled model {name} is not installed ({folder}): expected its weights in the "
        "package. Install spsbench again"
    )


def _local(name: str) -> Path | None:
    """Return the folder at a path, or that its GGUF file is unpacked to; None: no such path.

    MissingError: a blank name, or no file `*.gguf` of that name. Other SpsErrors: it is unusable.
    """
    if "\0" in name or not name.strip():
        raise _no_such(name)
    path = expand_path(name)
    try:
        path.stat()
        if path.is_dir():
            os.scandir(path).close()
            return path
        if named_gguf(name):
            return unpacked_folder(path)
    except PermissionError as error:
        raise PermissionDeniedError.unreadable(path, name) from error
    except OSError:
        if named_gguf(name):
            raise _no_such(name) from None
        return None  # missing, too long a name, a loop of links
    raise DataError(
        f"{name} is a file ({path}): expected the folder with config.json and the weights, "
        "or a file *.gguf. Pass the folder"
    )


def _no_such(name: str) -> MissingError:
    """Return the error for a name that is no model, with a hint by how it is written."""
    quoted = repr(name if len(name) <= 100 else name[:100] + "...")
    if "://" in name:
        hint = "URLs are not read. Pass the hub id, ORG/NAME, or a local folder"
    elif any(mark in name for mark in "*?[{"):
        hint = "patterns are not expanded. Pass one folder"
    elif name in ("", "-"):
        hint = "standard input is for prompts. Pass a folder or a hub id"
    else:
        hint = "check the path, or pass a hub id such as Qwen/Qwen3-0.6B"
    return MissingError(
        f"no model {quoted}: expected a folder, a hub id, a GGUF file or nano; {hint}"
    )


def check_folder(folder: Path, ref: ModelSpec, access: Access) -> None:
    """Check config, adapters, weights' headers and tokenizer of `ref` without reading a tensor.

    Weights that are not read are named in a note. SpsError: it is unusable, or a part is missing.
    """
    if not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        raise DataError(
            f"an adapter, not a model ({folder}): expected config.json and whole weights. "
            "Pass its base model, and this folder with `adapter`"
        )
    if not (folder / "config.json").is_file() and (files := sorted(folder.glob("*.gguf"))):
        raise DataError(
            f"no config.json but {files[0].name} ({folder}): expected a folder for transformers. "
            "Pass the GGUF file itself"
        )
    config = read_config(folder)
    check_config(config, folder, trust_remote_code=ref.trust_remote_code)
    read_adapters(ref.adapter, allow_pickle=access.allow_pickle)
    files = weight_files(folder, allow_pickle=access.allow_pickle)
    if files[0].suffix == ".safetensors":
        headers = read_headers(files)
        check_numbers(config, headers, folder)
        check_shapes(config, headers, folder)
        _name_unread(files, folder)
    # Four bits a number is the tightest packing there is; what is missing would be made up.
    largest = 2 * sum(path.stat().st_size for path in files)
    if embedding_and_layers(config) > largest:
        raise DataError(
            f"config.json describes {embedding_and_layers(config):.3g} numbers or more ({folder}): "
            f"expected at most {largest:.3g} in such weight files. Fetch the model again"
        )
    _check_tokenizer(folder)


def _name_unread(files: Sequence[Path], folder: Path) -> None:
    """Log which weights in `folder` are not read, if any; `weight_files` notes a whole file."""
    others = {*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")} - {*files}
    names = {path.name for path in others} - {WHOLE}
    if (folder / "adapter_config.json").is_file():
        names.add("adapter_config.json (name that adapter with `adapter` to use it)")
    if names:
        log.info(f"note: not read with the weights of {folder}: {', '.join(sorted(names))}")


def check_numbers(
    config: Mapping[str, Any], headers: Mapping[str, TensorHeader], folder: Path
) -> None:
    """Raise DataError for narrow floats or integer weights, unless the config says quantised."""
    if any(part.get("quantization_config") for part in (config, config.get("text_config") or {})):
        return
    for name, header in headers.items():
        is_narrow = header.dtype.startswith(("F8", "F6", "F4"))
        if header.dtype not in NUMBERS and (is_narrow or name.endswith("weight")):
            raise DataError(
                f"{name} has the dtype {header.dtype} ({folder}): expected floating point of 16 "
                "bits or more, as config.json has no quantization_config. Fetch the model again"
            )


def check_shapes(
    config: Mapping[str, Any], headers: Mapping[str, TensorHeader], folder: Path
) -> None:
    """Raise DataError for input embeddings of another shape than that of config.json.

    Not checked are quantised models, parts of larger ones, and sizes or embeddings not named so.
    """
    if config.get("quantization_config") or "text_config" in config:
        return
    widths = [config.get(key) for key in ("word_embed_proj_dim", "hidden_size", "n_embd")]
    sizes = config.get("vocab_size"), next(filter(None, widths), None)
    name = min((name for name in headers if name.endswith(INPUT_EMBEDDINGS)), key=len, default="")
    if name and all(sizes) and headers[name].shape != sizes:
        shapes = ["x".join(map(str, shape)) for shape in (headers[name].shape, sizes)]
        raise DataError(
            f"{name} has the shape {shapes[0]} ({folder}): expected {shapes[1]} by config.json. "
            "Fetch the model again"
        )


def _check_tokenizer(folder: Path) -> None:
    """Raise DataError if a tokenizer file in `folder` is a pointer of Git LFS, or too large.

    MissingError: no such file, or SentencePiece's alone without the package that reads it.
    """
    paths = [path for name in _TOKENIZERS.split() if (path := folder / name).is_file()]
    pieces = [path for path in paths if path.suffix == ".model"]
    is_alone = not {"tokenizer.json", "vocab.json", "vocab.txt"} & {path.name for path in paths}
    if pieces and is_alone and find_spec("sentencepiece") is None:
        with pieces[0].open("rb") as file:
            if file.read(1) == b"\n":  # a message of protobuf begins so; tiktoken writes text
                raise MissingError(
                    f"{pieces[0].name} alone ({folder}): expected tokenizer.json, or sentencepiece "
                    "to read it. Run pip install sentencepiece protobuf"
                )
    paths += folder.glob("*.tiktoken")
    if not paths:
        raise MissingError(
            f"no tokenizer ({folder}): expected tokenizer.json or the like. "
            "Copy the tokenizer files next to the weights"
        )
    for path in paths:
        refuse_pointer(path)
        if (size := path.stat().st_size) > TOKENIZER_LIMIT:
            raise DataError(
                f"{path.name} has {size} bytes ({path}): expected at most {TOKENIZER_LIMIT}. "
                "Fetch the model again"
            )
