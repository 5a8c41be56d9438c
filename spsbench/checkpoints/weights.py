"""Weight files: which files there are, and checks of their headers; no tensor is read."""

import logging
from collections.abc import Iterable, Mapping
from errno import EINVAL
from math import prod
from pathlib import Path
from typing import NamedTuple

from spsbench.checkpoints.config import read_object, refuse_pointer
from spsbench.errors import DataError, MissingError, PermissionDeniedError, first_line

log = logging.getLogger(__name__)

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE_INDEX = "pytorch_model.bin.index.json"
HEADS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Weights of a drafter's head that are called otherwise than a model's; the last is a pickle."""

INDEX_LIMIT = 64 << 20  # bytes
BYTES: Mapping[str, int] = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
INPUT_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
OUTPUT_HEADS = ("lm_head.weight", "embed_out.weight")


class TensorHeader(NamedTuple):
    """The safetensors header of one tensor."""

    dtype: str  # as in the file: "BF16", "F32", ...
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


def weight_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """Return the weight files that a loader reads: model.safetensors, or the shards of its index.

    Of both, the shards, unless one is missing; a note says which. Without safetensors: the shards
    of the pickles' index, else all pytorch_model*.bin. DataError: these without `allow_pickle`, a
    damaged index, or a missing shard. MissingError: no weights.
    """
    if safe := _indexed_or_whole(folder):
        return safe
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles:
        _check_trust(pickles[0], allow_pickle)
        index = folder / PICKLE_INDEX
        return _shards(index) if index.is_file() else pickles
    other = sorted(path.name for path in folder.glob("*.safetensors"))
    named = f"only {other[0]} of weights" if other else "no weights"
    raise MissingError(
        f"{named} ({folder}): expected model.safetensors or {INDEX}. Fetch the model again"
    )


def safetensors_files(folder: Path) -> list[Path]:
    """Return a model's safetensors as `weight_files`, else all in the folder by name, if any."""
    return _indexed_or_whole(folder) or sorted(folder.glob("*.safetensors"))


def _indexed_or_whole(folder: Path) -> list[Path]:
    """Return the shards of the index, else model.safetensors, else [].

    Of both, log which is read: the whole file if a shard is missing, else the shards. DataError: a
    damaged index, or a shard is missing and there is no whole file.
    """
    index, whole = folder / INDEX, folder / WHOLE
    if not index.is_file():
        return [whole] if whole.is_file() else []
    names = set(_weight_map(index).values())
    gone = sorted(name for name in names if not (folder / name).is_file())
    if whole.is_file() and whole.name not in names:
        both = f"note: {folder} has {WHOLE} and {INDEX}: reading"
        if gone:
            log.info(f"{both} {WHOLE}, as {gone[0]} is missing. Remove the index")
            return [whole]
        log.info(f"{both} the shards of the index. Remove what is stale")
    return _shards(index)


def head_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """Return the files of `weight_files`, else the one file of a Medusa head, in a list.

    DataError: only pickles without `allow_pickle`, or a missing shard. MissingError: no weights.
    """
    safe, pickle = (folder / name for name in HEADS)
    try:
        return weight_files(folder, allow_pickle=allow_pickle)
    except MissingError:
        path = safe if safe.is_file() else pickle
        if not path.is_file():
            raise
    if path == pickle:
        _check_trust(path, allow_pickle)
    return [path]


def _check_trust(pickle: Path, allow_pickle: bool) -> None:
    if not allow_pickle:
        raise DataError(
            f"only pickled weights such as {pickle.name} ({pickle.parent}): expected safetensors, "
            "as a pickle can run code. Convert them, or trust their author with `allow_pickle`"
        )


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names, each once and by name; DataError: one is missing."""
    files = [index.parent / name for name in sorted(set(_weight_map(index).values()))]
    for path in files:
        if not path.is_file():
            raise DataError(
                f"shard {path.name} is missing ({index.parent}): {index.name} expects it. "
                "Fetch the model again"
            )
    return files


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor -> file name of an index; DataError: it has none, or one outside the folder."""
    names = read_object(index, INDEX_LIMIT).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise DataError(
            f"{index.name} has no weight_map ({index}): expected tensor names and files. "
            "Fetch the model again"
        )
    for name in map(str, names.values()):
        if Path(name).name != name or "\\" in name or "\0" in name:
            raise DataError(
                f"{index.name} names {name[:80]!r} ({index}): expected a file inside the folder. "
                "Fetch the model from where you trust it"
            )
    return {tensor: str(name) for tensor, name in names.items()}


def stale_names(path: Path, names: Iterable[str]) -> set[str]:
    """Return those `names` of tensors in `path` that the index beside it gives to another file."""
    index = path.parent / INDEX
    places = _weight_map(index) if index.is_file() else {}
    if path.name not in places.values():
        return set()
    return {name for name in names if places.get(name, path.name) != path.name}


def regular_file(path: Path) -> None:
    """Raise OSError for a pipe, a device or a folder; a file passes, and so does an absent one."""
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "neither a file nor a link to one")


def read_headers(files: Iterable[Path]) -> dict[str, TensorHeader]:
    """Return tensor name -> header, over all safetensors files; an index decides between copies.

    Without an index the last file does. DataError: a file is missing, damaged, no regular file or a
    pointer of Git LFS. PermissionDeniedError: it may not be read.
    """
    from safetensors import SafetensorError, safe_open

    headers: dict[str, TensorHeader] = {}
    for path in files:
        try:
            regular_file(path)
            refuse_pointer(path)
            with safe_open(path, framework="np") as file:
                stale = stale_names(path, file.keys())
                for name in (name for name in file.keys() if name not in stale):  # noqa: SIM118
                    part = file.get_slice(name)
                    headers[name] = TensorHeader(part.get_dtype(), tuple(part.get_shape()))
        except PermissionError as error:
            raise PermissionDeniedError.unreadable(path) from error
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{path.name} cannot be read ({path}): {first_line(error)}. Expected whole "
                "safetensors. Fetch the model again"
            ) from error
    return headers


def token_weight_bytes(folder: Path, dtype: str) -> int:
    """Return the bytes of weights that one token reads, with all experts, by safetensors' headers.

    Numbers take the bytes of `dtype`, codes too, but two if they are stored as bfloat16. Input
    embeddings next to an output head are left out, as a token reads one row; without a head they
    are it, and are read whole. MissingError: no safetensors. DataError: damaged ones.
    """
    headers = read_headers(safetensors_files(folder))
    if not headers:
        raise MissingError(
            f"no *.safetensors ({folder}): expected the weights of a model. Fetch the model again"
        )
    headed = any(name.endswith(OUTPUT_HEADS) for name in headers)
    return sum(
        header.numbers * (2 if header.dtype == "BF16" else BYTES[dtype])
        for name, header in headers.items()
        if not (headed and name.endswith(INPUT_EMBEDDINGS))
    )


def prompt_operations(folder: Path) -> int:
    """Return a prompt token's operations: two a weight, embeddings and output head left out."""
    headers = read_headers(safetensors_files(folder)).items()
    outside = INPUT_EMBEDDINGS + OUTPUT_HEADS
    return 2 * sum(header.numbers for name, header in headers if not name.endswith(outside))
