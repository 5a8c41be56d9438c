"""The header of a GGUF file: its metadata, and whether the file is complete.

Layout of versions 2 and 3 (ggml-org/ggml, docs/gguf.md): magic, version, counts, keys and values,
one description a tensor, then the tensors. Types and their sizes are those of the package `gguf`;
its reader is not used, since it takes any length of a list on trust, and seconds for a vocabulary.
"""

import struct
from collections import Counter
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from spsbench.checkpoints.config import refuse_pointer
from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.hardware.files import open_file

KEPT = "gguf.blocks"  # the blocks next to unpacked weights; no loader takes that suffix
MAGIC = b"GGUF"
VERSIONS = (2, 3)
_MAX_ENTRIES = 1 << 20  # tensors, or keys
_LAYERS = 1 << 10
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_NUMBERS |= {12: "d"}
MIXED = range(7, 19)  # values of `general.file_type` whose files mix types: Q8_0, Q2_K to Q6_K
NEEDED = ("gguf", "accelerate")


class Header(NamedTuple):
    """The metadata of a GGUF file."""

    values: dict[str, Any]  # for arrays of texts, and for long ones, the length alone
    numbers: int  # weights, over all tensors
    packing: str  # as the file is called, or the type that most weights have: "Q4_1"
    tensors: frozenset[str]  # their names

    @property
    def architecture(self) -> str:
        """Return the architecture as llama.cpp names it; "" without one."""
        return str(self.values.get("general.architecture", ""))

    @property
    def keys(self) -> dict[str, Any]:
        """Return the values of the architecture's own keys, without its name before them."""
        begin = f"{self.architecture}."
        pairs = ((key, x) for key, x in self.values.items() if key.startswith(begin))
        return {key.removeprefix(begin): x for key, x in pairs}


def named_gguf(name: str) -> bool:
    """Return whether `name` can only mean a GGUF file."""
    return name.lower().endswith(".gguf")


def check_gguf_packages() -> None:
    """Raise MissingError unless the packages that transformers needs for GGUF are installed."""
    for name in NEEDED:
        if find_spec(name) is None:
            raise MissingError(
                f"{name} is not installed (GGUF): expected it to read such files. "
                "Install it with pip install gguf accelerate"
            )


def read_header(path: Path) -> Header:
    """Read a GGUF file's header; MissingError: no such file, or no package `gguf` or `accelerate`.

    DataError: damaged, a part of several, of another format, without architecture or tokenizer, or
    a pointer of Git LFS. PermissionDeniedError: it may not be read.
    """
    check_gguf_packages()
    refuse_pointer(path)
    try:
        with open_file(path) as file:
            head = _HeaderReader(path, file).header()
    except PermissionError as error:
        raise PermissionDeniedError.unreadable(path) from error
    except OSError as error:
        raise MissingError(
            f"no file {path.name} ({path}): expected a GGUF file. Check the path"
        ) from error
    if (parts := head.values.get("split.count", 1)) != 1:
        raise DataError(
            f"{path.name} is one of {parts} parts ({path}): expected a whole GGUF file. "
            "Unite the parts with llama-gguf-split --merge"
        )
    if not head.architecture:
        raise DataError(
            f"{path.name} names no architecture ({path}): expected a language model. "
            "Choose another file"
        )
    if not head.values.get("tokenizer.ggml.tokens"):
        raise DataError(
            f"{path.name} has no tokenizer ({path}): expected one in the file. "
            "Convert the model again together with its tokenizer"
        )
    return head


class _HeaderReader:
    """A sequential reader of plain values, never of more than the file has."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._size = self._left = path.stat().st_size  # bytes: of the file, and not yet taken

    def header(self) -> Header:
        """Read the whole header; DataError: another format, an unknown type, too short, no tensors.

        Descriptions of tensors are checked against the file's size; no tensor is read.
        """
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

        self._refuse_other_formats()
        tensors, keys = self._count(), self._count()
        values = {}
        for _ in range(keys):
            name = self._text()
            values[name] = self._value(self._number("I"))
        kinds: Counter[str] = Counter()
        names: set[str] = set()
        end = 0
        for _ in range(tensors):
            name = self._text()
            shape = [self._number("Q") for _ in range(min(self._number("I"), 8))]
            kind, offset = self._number("I"), self._number("Q")
            if kind not in iter(GGMLQuantizationType):
                raise DataError(
                    f"{self._path.name} packs {name[:80]!r} by type {kind}, which is not known "
                    f"here ({self._path}): expected {', '.join(GGMLQuantizationType.__members__)}. "
                    "Choose a file of another type"
                )
            packing = GGMLQuantizationType(kind)
            block, width = GGML_QUANT_SIZES[packing]
            numbers = prod(shape)
            kinds[packing.name] += numbers
            names.add(name)
            end = max(end, offset + -(-numbers // block) * width)
        step = int(values.get("general.alignment", 32)) or 32
        start = -(-(self._size - self._left) // step) * step
        if start + end > self._size:
            self._bad(f"has {self._size:,} bytes where its head describes {start + end:,}")
        if not kinds:
            self._bad("holds no tensors")
        most = kinds.most_common(1)[0][0]
        kind = values.get("general.file_type")
        if kind in MIXED:
            most = LlamaFileType(kind).name.removeprefix("MOSTLY_")
        return Header(values, kinds.total(), most, frozenset(names))

    def _refuse_other_formats(self) -> None:
        """Read magic and version; DataError unless little-endian GGUF of version 2 or 3."""
        if self._size < len(MAGIC) or self._take(len(MAGIC)) != MAGIC:
            self._bad("does not begin as a GGUF file")
        version = self._number("I")
        if version in (supported << 24 for supported in VERSIONS):
            self._bad("is big-endian, for another kind of machine")
        if version not in VERSIONS:
            self._bad(f"has version {version}, not 2 or 3")

    def _take(self, count: int) -> bytes:
        if count > self._left:
            self._bad("ends within its head")
        self._left -= count
        return self._file.read(count)

    def _number(self, kind: str) -> Any:
        return struct.unpack("<" + kind, self._take(struct.calcsize("<" + kind)))[0]

    def _count(self) -> int:
        if (count := int(self._number("Q"))) > _MAX_ENTRIES:
            self._bad(f"claims {count:,} entries")
        return count

    def _text(self) -> str:
        return self._take(self._number("Q")).decode(errors="replace")

    def _value(self, kind: int) -> Any:
        """Read the next value of `kind`: a number, a text, or a list of up to 1024 numbers.

        Of a list of texts, or of more numbers, the length is returned alone. DataError: an unknown
        kind, a list of lists, or a length beyond the file.
        """
        if kind == _STRING:
            return self._text()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            self._bad(f"has a value of an unknown kind, {kind}")
        inner, length = self._number("I"), self._number("Q")
        if inner in _NUMBERS:
            numbers = self._take(length * struct.calcsize("<" + _NUMBERS[inner]))
            if length <= _LAYERS:  # one number a layer
                return list(struct.unpack(f"<{length}{_NUMBERS[inner]}", numbers))
        elif inner == _STRING:
            for _ in range(length):  # ends with the file at the latest
                self._take(self._number("Q"))
        else:
            self._bad(f"has a list of an unknown kind, {inner}")
        return length

    def _bad(self, what: str) -> NoReturn:
        raise DataError(
            f"{self._path.name} {what} ({self._path}): expected a whole GGUF file. Fetch it again"
        )
