"""The quantised blocks of a GGUF file, kept beside the weights that transformers makes of them.

Block layouts: ggml-org/ggml, ggml-common.h (`block_q4_0`, `block_q4_1`, `block_q8_0`): 32 inputs of
an output, a scale in half precision, a minimum where there is one, the numbers. Of 4 bits the lower
halves of the bytes come first.
"""

from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from spsbench.engines.linear_layers import slots
from spsbench.engines.quantization.codes import Codes
from spsbench.engines.quantization.layers import give_codes
from spsbench.errors import DataError, MissingError
from spsbench.models.gguf.header import KEPT
from spsbench.settings.models import BLOCKS

GROUP = 32  # inputs of a block
KINDS = {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4}  # bits of those that the kernels multiply
_AT_ONCE = 1024  # rows
_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}  # bytes of a block


class Stored(NamedTuple):
    """A tensor of a GGUF file."""

    kind: str  # one of `KINDS`
    rows: Tensor  # [out, bytes] uint8

    @property
    def codes(self) -> Codes:
        """Return codes [out, in] int8, half-precision scales, and minima (None but of Q4_1)."""
        out = len(self.rows)
        blocks = self.rows.reshape(out, -1, _BYTES[self.kind])
        halves = 2 if self.kind == "Q4_1" else 1
        ends = blocks[..., : 2 * halves].contiguous().view(torch.float16)
        packed = blocks[..., 2 * halves :]
        if KINDS[self.kind] == 8:
            numbers = packed.contiguous().view(torch.int8)
        else:
            numbers = torch.cat([packed & 15, packed >> 4], -1).to(torch.int8)
        numbers = numbers - 8 if self.kind == "Q4_0" else numbers
        scales, *minima = (end.squeeze(-1).contiguous() for end in torch.split(ends, 1, -1))
        flat = numbers.reshape(out, -1)
        return Codes(flat, scales, GROUP, KINDS[self.kind], minima[0] if minima else None)

    @property
    def dense(self) -> Tensor:
        """Return [out, in] in float32, as every reader of such files does."""
        return self.codes.dense(torch.float32)


def keep_blocks(file: Path, model: nn.Module, folder: Path) -> None:
    """Write `KEPT` into `folder`: the blocks of those layers of `model` that are blocks in `file`.

    `model` is what transformers made of the GGUF `file`, in float32. A layer's rows are looked for
    among the file's, whatever the order that transformers has put them in; what is kept stands for
    the layer's numbers bit by bit. `KEPT` is written without such layers, too.
    """
    indexes = _index_rows(file)
    names = {id(layer): name for name, layer in model.named_modules()}
    stored: dict[str, Stored] = {}
    for slot in slots(model):
        weight = slot.weight.detach()
        hashes = _hash_rows(weight)
        for (kind, width), (file_hashes, rows) in indexes.items():
            if width != weight.shape[1]:
                continue
            places = torch.searchsorted(file_hashes, hashes).clamp(max=len(file_hashes) - 1)
            block_rows = Stored(kind, rows[places])
            if torch.equal(file_hashes[places], hashes) and torch.equal(block_rows.dense, weight):
                stored[names[id(slot.layer)]] = block_rows
    kinds = {name: blocks.kind for name, blocks in stored.items()}
    save_file({name: blocks.rows for name, blocks in stored.items()}, folder / KEPT, metadata=kinds)


def tensors_named(file: Path, names: Container[str]) -> dict[str, Tensor]:
    """Return those tensors of a GGUF file that have one of `names`, in float32; others are absent.

    Names are the file's own (`rope_freqs.weight`), shapes as in torch.
    """
    from gguf import GGUFReader, dequantize

    return {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in GGUFReader(str(file), "c").tensors
        if tensor.name in names
    }


def _index_rows(file: Path) -> dict[tuple[str, int], tuple[Tensor, Tensor]]:
    """Return (kind, inputs) -> rising hashes [n] of the rows of the file's matrices, and the rows.

    The rows [n, bytes] are in the order of the hashes; kinds beside `KINDS` are left out.
    """
    from gguf import GGUFReader

    parts: dict[tuple[str, int], list[tuple[Tensor, Tensor]]] = {}
    for tensor in GGUFReader(str(file), "c").tensors:
        if (kind := tensor.tensor_type.name) not in KINDS or tensor.data.ndim != 2:
            continue
        stored = Stored(kind, torch.from_numpy(tensor.data))
        width = stored.rows.shape[1] // _BYTES[kind] * GROUP
        parts.setdefault((kind, width), []).append((_hash_rows(stored.dense), stored.rows))
    indexes = {}
    for key, matrices in parts.items():
        hashes, order = torch.cat([hashes for hashes, _ in matrices]).sort()
        indexes[key] = hashes, torch.cat([rows for _, rows in matrices])[order]
    return indexes


def _hash_rows(weight: Tensor) -> Tensor:
    """Hash the rows of [out, in] float32 to [out] integers; different rows almost surely differ."""
    draw = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (weight.shape[1],), generator=draw)
    parts = weight.split(_AT_ONCE)  # type: ignore[no-untyped-call]
    return torch.cat([(part.contiguous().view(torch.int32) * factors).sum(1) for part in parts])


def lay_blocks(model: nn.Module, folder: Path) -> None:
    """Replace layers of `model`, in place, by layers over the blocks kept in `folder`, if any.

    MissingError: no file `KEPT`. DataError: damaged, or of layers that `model` lacks.
    """
    codes = {name: blocks.codes for name, blocks in _load(folder).items()}
    try:
        give_codes(model, codes, BLOCKS)
    except (LookupError, AttributeError) as error:
        raise DataError(
            f"{KEPT} has blocks of {error}, which {type(model).__name__} has not so ({folder}): "
            "expected those of this model. Remove the folder and unpack the GGUF file again"
        ) from error


def check_blocks(folder: Path) -> None:
    """Raise MissingError for a folder without the file of blocks."""
    if not (folder / KEPT).is_file():
        raise MissingError(
            f"no GGUF blocks ({folder}): expected a model from a GGUF file for `weights` {BLOCKS}. "
            "Fetch or unpack it again if it is one, else take the weights as they are"
        )


def _load(folder: Path) -> dict[str, Stored]:
    """Return layer name -> its blocks, or {}; MissingError: no file `KEPT`. DataError: damaged."""
    path = folder / KEPT
    check_blocks(folder)
    try:
        with safe_open(path, framework="pt") as file:
            kinds = file.metadata() or {}
            return {name: Stored(kind, file.get_tensor(name)) for name, kind in kinds.items()}
    except (SafetensorError, KeyError) as error:
        raise DataError(
            f"{KEPT} is damaged ({path}): expected blocks. Remove the folder and unpack again"
        ) from error
