"""The format of blockwise parallel heads; none was ever published, so this one is our own.

`config.json`: `model_type: blockwise`, `hidden_size`, `inner_size`, `vocab_size`, `num_heads`, and
`base_model_name_or_path` if it is known. Tensors: `heads.{i}.{up,down}.{weight,bias}`, i from 0 for
the second token after the hidden state (the paper's p_2), and `lm_head.weight` [V, H] where the
vocabulary projection is not the target's own.
"""

from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import MANY, BlockwiseShape, Description, Trained, whole
from spsbench.models.heads.formats.format import Format, Shapes, target_of


def knows(files: Checkpoint) -> bool:
    """Return whether the config names this format."""
    return files.config.get("model_type") == "blockwise"


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe feed-forward layers over one vocabulary projection."""
    config, where = files.config, files.config_path
    shape = BlockwiseShape(
        width=whole(config, "hidden_size", where),
        inner=whole(config, "inner_size", where),
        vocab=whole(config, "vocab_size", where),
        count=whole(config, "num_heads", where, most=MANY),
        own_head="lm_head.weight" in files.headers,
    )
    shapes: Shapes = {}
    for i in range(shape.count):
        shapes |= {
            f"heads.{i}.up.weight": (shape.inner, shape.width),
            f"heads.{i}.up.bias": (shape.inner,),
            f"heads.{i}.down.weight": (shape.width, shape.inner),
            f"heads.{i}.down.bias": (shape.width,),
        }
    if shape.own_head:
        shapes["lm_head.weight"] = (shape.vocab, shape.width)
    trained = Trained(target_of(config), shape.width, shape.vocab)
    names = {name: name for name in shapes}
    return Description("blockwise", BLOCKWISE.writer, shape, trained, names, shapes, {})


BLOCKWISE = Format("spsbench", "blockwise", knows, describe)
