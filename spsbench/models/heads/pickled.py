"""Names and shapes in a pickled checkpoint, without running what a pickle may hold, and no torch.

A file of `torch.save` is a zip with a pickle beside raw numbers. The pickle is read by an unpickler
that knows ten harmless names and refuses every other, so that nothing of the file's is called.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError
from spsbench.models.weights import TensorHeader

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


class _Kind(NamedTuple):
    """A kind of numbers."""

    dtype: str


def _tensor(storage: Any, offset: int, size: tuple[int, ...], *rest: Any) -> TensorHeader:
    return TensorHeader(storage.dtype, tuple(size))


def _parameter(data: Any, *rest: Any) -> Any:
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


def pickled_headers(path: Path) -> dict[str, TensorHeader]:
    """Tensor name -> header of a file that `torch.save` has written.

    Raises:
        DataError: no such file, or one that holds anything but tensors by name.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            if archive.getinfo(inside).file_size > LIMIT:
                raise ValueError(f"its pickle has more than {LIMIT} bytes")
            found = _Headers(io.BytesIO(archive.read(inside))).load()
    except Exception as error:  # an unpickler may raise anything
        raise DataError(
            f"{path.name} cannot be read ({path}): {error}. Expected tensors by name, as "
            "torch.save writes them. Convert it to safetensors"
        ) from error
    plain = isinstance(found, dict)
    if not plain or not all(isinstance(each, TensorHeader) for each in found.values()):
        raise DataError(
            f"{path.name} holds more than tensors ({path}): expected tensors by name. Convert "
            "it to safetensors"
        )
    return {str(name): header for name, header in found.items()}
