"""Heads of Medusa as their authors and TGI write them, and as vLLM's converter does.

Sources: FasterDecoding/Medusa `medusa_model.py` (`0.0.linear.weight`, `0.1.weight`, a pickle
called `medusa_lm_head.pt`; TGI: the same in safetensors), vLLM `medusa.py` (`blocks.0.layers.0`,
`lm_heads.0`, and maybe `token_map`). Configs of published heads say 2 heads where the file has 5:
heads and their blocks are counted in the file.
"""

import re
from itertools import count

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import MANY, Description, MedusaShape, Trained, whole
from spsbench.models.heads.formats.format import Format, Shapes, target_of

FRONTS = ("", "medusa_head.")
AUTHORS = re.compile(r"(?:medusa_head\.)?(\d+)\.0\.linear\.weight")
VLLM = re.compile(r"blocks\.(\d+)\.layers\.0\.weight")


def knows(files: Checkpoint) -> bool:
    """Return whether there is a first block of a first head."""
    return any(AUTHORS.fullmatch(name) or VLLM.fullmatch(name) for name in files.headers)


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe heads, each of blocks and a vocabulary projection."""
    config, where = files.config, files.config_path
    converted = any(VLLM.fullmatch(name) for name in files.headers)
    pattern = VLLM if converted else AUTHORS
    head_numbers = {int(m[1]) for name in files.headers if (m := pattern.fullmatch(name))}
    if head_numbers != set(range(len(head_numbers))):
        raise DataError(
            f"heads {', '.join(map(str, sorted(head_numbers)))} ({files.folder}): expected them "
            "from 0, without a gap. Fetch it again"
        )
    key = "num_heads" if converted else "medusa_num_heads"
    if (stated := whole(config, key, where, len(head_numbers), most=MANY)) > len(head_numbers):
        raise DataError(
            f"{key} is {stated} ({where}): expected at most {len(head_numbers)}, the heads that "
            "the file has. Fetch the head again"
        )
    front = next((f for f in FRONTS if f + "0.0.linear.weight" in files.headers), "")
    block = "blocks.{h}.layers.{j}" if converted else f"{front}{{h}}.{{j}}.linear"
    depth = next(j for j in count() if f"{block.format(h=0, j=j)}.weight" not in files.headers)
    head = "lm_heads.{h}" if converted else f"{front}{{h}}.{depth}"
    first = block.format(h=0, j=0)
    width = files.shape(f"{first}.weight")[0]
    rows = files.shape(f"{head.format(h=0)}.weight")[0]
    shape = MedusaShape(
        width=whole(config, "hidden_size", where, width),
        draft_vocab=rows,
        count=len(head_numbers),
        depth=depth,
        bias=f"{first}.bias" in files.headers,
    )
    shapes: Shapes = {}
    names: dict[str, str] = {}
    for h in range(shape.count):
        for j in range(depth):
            shapes[f"heads.{h}.blocks.{j}.weight"] = (shape.width, shape.width)
            names[f"heads.{h}.blocks.{j}.weight"] = block.format(h=h, j=j) + ".weight"
            if shape.bias:
                shapes[f"heads.{h}.blocks.{j}.bias"] = (shape.width,)
                names[f"heads.{h}.blocks.{j}.bias"] = block.format(h=h, j=j) + ".bias"
        shapes[f"heads.{h}.lm_head.weight"] = (rows, shape.width)
        names[f"heads.{h}.lm_head.weight"] = head.format(h=h) + ".weight"
    if converted and (cut := whole(config, "truncated_vocab_size", where, rows)) != rows:
        raise DataError(
            f"truncated_vocab_size is {cut} ({where}): expected {rows}, the rows of its heads. "
            "Fetch the head again"
        )
    mapped = "token_map" in files.headers
    if not mapped and (vocab := whole(config, "vocab_size", where, rows)) != rows:
        raise DataError(
            f"heads of {rows} rows for vocab_size {vocab}, and no token_map ({files.folder}): "
            "expected a row for each token, or the map. Fetch the head again"
        )
    vocab = rows
    if mapped:
        shapes["token_map"], names["token_map"] = (rows,), "token_map"
        vocab = whole(config, "vocab_size", where)
    trained = Trained(target_of(config), shape.width, vocab)
    writer = "vLLM" if converted else MEDUSA.writer
    return Description("medusa", writer, shape, trained, names, shapes, {})


MEDUSA = Format("Medusa", "medusa", knows, describe)
