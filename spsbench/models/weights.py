"""Weight files: which files there are, and checks of their headers; no tensor is read."""

from collections.abc import Iterable, Mapping
from errno import EINVAL
from math import prod
from pathlib import Path
from typing import NamedTuple

from spsbench.errors import DataError, MissingError, PermissionDeniedError, first_line
from spsbench.models.config import read_object

INDEX = "model.safetensors.index.json"
PICKLE_INDEX = "pytorch_model.bin.index.json"
HEADS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Weights of a drafter's head that are called otherwise than a model's; the last is a pickle."""

INDEX_LIMIT = 64 << 20  # bytes
HALF = 2
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
    """Return the weight files that a loader reads: one, or the shards of the index.

    Raises:
        MissingError: there are none.
        DataError: pickles without `allow_pickle`; a shard that is missing or outside the folder.
    """
    index = folder / INDEX
    if index.is_file():
        return _shards(index)
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles and not allow_pickle:
        raise DataError(
            f"only pickled weights such as {pickles[0].name} ({folder}): expected safetensors, "
            "as a pickle can run code. Convert the model, or trust its author with --allow-pickle"
        )
    if pickles:
        index = folder / PICKLE_INDEX
        return _shards(index) if index.is_file() else pickles
    other = sorted(path.name for path in folder.glob("*.safetensors"))
    named = f"only {other[0]} of weights" if other else "no weights"
    raise MissingError(
        f"{named} ({folder}): expected model.safetensors or {INDEX}. Fetch the model again"
    )


def head_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """Return the weight files of a model or of a drafter's head.

    Raises:
        MissingError, DataError: as `weight_files`.
    """
    safe, pickle = (folder / name for name in HEADS)
    try:
        return weight_files(folder, allow_pickle=allow_pickle)
    except MissingError:
        found = safe if safe.is_file() else pickle
        if not found.is_file():
            raise
    if found == pickle and not allow_pickle:
        raise DataError(
            f"only pickled weights such as {pickle.name} ({folder}): expected safetensors, "
            "as a pickle can run code. Convert the head, or trust its author with --allow-pickle"
        )
    return [found]


def _shards(index: Path) -> list[Path]:
    names = read_object(index, INDEX_LIMIT).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise DataError(
            f"{index.name} has no weight_map ({index}): expected tensor names and files. "
            "Fetch the model again"
        )
    files = []
    for name in sorted({str(name) for name in names.values()}):
        if Path(name).name != name or "\\" in name or "\0" in name:
            raise DataError(
                f"{index.name} names {name[:80]!r} ({index}): expected a file inside the folder. "
                "Fetch the model from where you trust it"
            )
        files.append(index.parent / name)
        if not files[-1].is_file():
            raise DataError(
                f"shard {name} is missing ({index.parent}): {index.name} expects it. "
                "Fetch the model again"
            )
    return files


def regular_file(path: Path) -> None:
    """Check that `path` is no pipe and no device, whose opening or reading may never end.

    Raises:
        OSError: it is one.
    """
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "neither a file nor a link to one")


def read_headers(files: Iterable[Path]) -> dict[str, TensorHeader]:
    """Return tensor name -> header, over all safetensors files.

    Raises:
        DataError: a file that is empty, truncated, or whose header is absurd.
        PermissionDeniedError: a file that may not be read.
    """
    from safetensors import SafetensorError, safe_open

    headers: dict[str, TensorHeader] = {}
    for path in files:
        try:
            regular_file(path)
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
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


def weight_bytes(folder: Path, dtype: str) -> int:
    """Return the least bytes of weights that one token reads, from the `*.safetensors` headers.

    Numbers that are stored as bfloat16 need two bytes in float32 too. Input embeddings beside a
    head of their own are left out: a token reads one row of them. Without one they are the head,
    and are read whole.

    Raises:
        KeyError: a dtype that is not one of `BYTES`.
        MissingError: no weights in `folder`.
        DataError, PermissionDeniedError: as `read_headers`.
    """
    headers = read_headers(sorted(folder.glob("*.safetensors")))
    if not headers:
        raise MissingError(
            f"no *.safetensors ({folder}): expected the weights of a model. Fetch the model again"
        )
    headed = any(name.endswith(OUTPUT_HEADS) for name in headers)
    looked_up = [name for name in headers if headed and name.endswith(INPUT_EMBEDDINGS)]
    return sum(
        header.numbers * (HALF if header.dtype == "BF16" else BYTES[dtype])
        for name, header in headers.items()
        if name not in looked_up
    )
