"""Weight files: which files there are, and checks of their headers; no tensor is read."""

import json
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeGuard

from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.hardware.files import open_file
from spsbench.models.config import read_object

INDEX = "model.safetensors.index.json"
PICKLE_INDEX = "pytorch_model.bin.index.json"
HEADS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Weights of a drafter's head that are called otherwise than a model's; the last is a pickle."""

INDEX_LIMIT = 64 << 20  # bytes
_HEADER_LIMIT = 100 << 20  # bytes, the format's own
_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "I16": 16,
    "U16": 16,
    "I32": 32,
    "U32": 32,
    "I64": 64,
    "U64": 64,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
}


class TensorHeader(NamedTuple):
    """The safetensors header of one tensor."""

    dtype: str  # as in the file: "BF16", "F32", ...
    shape: tuple[int, ...]
    span: range = range(0)  # its bytes in the file; a pickle has none

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


def read_headers(files: list[Path]) -> dict[str, TensorHeader]:
    """Return tensor name -> header, over all safetensors files.

    Raises:
        DataError: a file that is empty, truncated, or whose header is absurd.
        PermissionDeniedError: a file that may not be read.
    """
    headers: dict[str, TensorHeader] = {}
    for path in files:
        headers.update(_header(path))
    return headers


def _header(path: Path) -> dict[str, TensorHeader]:
    def bad(what: str) -> DataError:
        return DataError(
            f"{path.name} {what} ({path}): expected whole safetensors. Fetch the model again"
        )

    try:
        size = path.stat().st_size
        with open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _HEADER_LIMIT):
                raise bad(f"has {size} bytes and claims a header of {length}")
            raw = json.loads(file.read(length))
    except PermissionError as error:
        raise PermissionDeniedError.unreadable(path) from error
    except OSError as error:
        raise bad(f"cannot be read, {error.strerror}") from error
    except RecursionError as error:
        raise bad("has a header that is nested too deeply") from error
    except ValueError as error:
        raise bad("has a header that is not JSON") from error
    if not isinstance(raw, dict):
        raise bad("has a header that is no object")
    raw.pop("__metadata__", None)
    first = 8 + length
    end, headers = first, {}
    for name, entry in raw.items():
        header = _entry(entry, first)
        if header is None:
            raise bad(f"describes {name[:80]!r} wrongly")
        headers[name] = header
        end = max(end, header.span.stop)
    if end != size:
        raise bad(f"holds {size - first} bytes of tensors where its header says {end - first}")
    return headers


def _entry(entry: object, first: int) -> TensorHeader | None:
    """Check the header of one tensor that begins at byte `first`; None if it is contradictory."""
    if not isinstance(entry, dict):
        return None
    dtype, shape, ends = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        return None
    if not _naturals(shape) or not _naturals(ends) or len(ends) != 2:
        return None
    header = TensorHeader(dtype, tuple(shape), range(first + ends[0], first + ends[1]))
    # Not the length of the range: that of a span backwards would be 0.
    whole = (ends[1] - ends[0]) * 8 == header.numbers * _BITS[dtype]
    return header if whole else None


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(x) is int and x >= 0 for x in value)
