"""The folder of a head: its config, and the names and shapes of its tensors.

Pickles are parsed without being run: a file of `torch.save` is a zip with a pickle beside raw
numbers, and the unpickler here knows ten harmless names and refuses every other.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MissingError
from spsbench.models.config import read_config
from spsbench.models.weights import TensorHeader, read_headers, regular_file, safetensors_files

LIMIT = 16 << 20  # bytes of the pickle itself

STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}

PICKLES = ("pytorch_model*.bin", "*.pt", "*.bin")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a head's folder that can be known without reading a weight."""

    folder: Path
    config: Mapping[str, Any]
    headers: Mapping[str, TensorHeader]
    files: tuple[Path, ...]  # that hold them: safetensors, or pickles where there are none
    answers: Mapping[str, Any] = field(default_factory=dict)  # what a user said of it

    @property
    def pickled(self) -> bool:
        """Return whether the weights are in a pickle."""
        return self.files[0].suffix != ".safetensors"

    @property
    def config_path(self) -> str:
        """Return the path of the config, for messages."""
        return str(self.folder / "config.json")

    @property
    def kind(self) -> str:
        """Return the first of the config's `architectures`, if it is a name."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the files."""
        if name not in self.headers:
            raise DataError(f"no tensor {name} ({self.folder}): expected it. Check `draft`")
        return self.headers[name].shape


def checkpoint(folder: Path, answers: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read the config and the tensor headers of a folder, without running a pickle."""
    config = read_config(folder)
    files = safetensors_files(folder)
    headers: dict[str, TensorHeader] = {}
    if not files:
        files = next(
            (pickles for pattern in PICKLES if (pickles := sorted(folder.glob(pattern)))), []
        )
    if not files:
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check `draft`"
        )
    for path in files:
        safe = path.suffix == ".safetensors"
        file_headers = read_headers([path]) if safe else pickled_headers(path)
        if twice := sorted(file_headers.keys() & headers.keys()):
            raise DataError(f"{twice[0]} twice ({path}): expected each tensor in one file")
        headers.update(file_headers)
    return Checkpoint(folder, config, headers, tuple(files), answers or {})


def pickled_headers(path: Path) -> dict[str, TensorHeader]:
    """Return tensor name -> header of a file that `torch.save` has written."""
    try:
        regular_file(path)
        with zipfile.ZipFile(path) as archive:
            inside = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            if archive.getinfo(inside).file_size > LIMIT:
                raise ValueError(f"its pickle has more than {LIMIT} bytes")
            state = _Headers(io.BytesIO(archive.read(inside))).load()
    except Exception as error:  # an unpickler may raise anything
        raise DataError(
            f"{path.name} cannot be read ({path}): {error}. Expected tensors by name, as "
            "torch.save writes them. Convert it to safetensors"
        ) from error
    plain = isinstance(state, dict)
    if not plain or not all(isinstance(header, TensorHeader) for header in state.values()):
        raise DataError(
            f"{path.name} holds more than tensors ({path}): expected tensors by name. Convert "
            "it to safetensors"
        )
    return {str(name): header for name, header in state.items()}


class _Kind(NamedTuple):
    """The dtype that a storage class of torch names."""

    dtype: str


def _tensor(storage: Any, offset: int, size: tuple[int, ...], *_unused: Any) -> TensorHeader:
    return TensorHeader(storage.dtype, tuple(size))


def _parameter(data: Any, *_unused: Any) -> Any:
    return data


NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", name): _Kind(dtype) for name, dtype in STORAGES.items()},
}


class _Headers(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return NAMES[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid[1]  # ("storage", kind, key, place, numbers)
