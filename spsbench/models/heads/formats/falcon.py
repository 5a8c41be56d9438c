"""Heads of Falcon: the names of their authors, and our own key for the LSTM's recurrence.

Source: Bestpay-inc/Falcon, `models/cnets.py`: the config of a Llama of one layer with `k_mask`, the
tokens of a block; `bias` is that of the LSTM, and defaults to true. That code cannot run as
published: it passes the LSTM's pair of outputs and states on as features, and feeds the text along
the dimension that this LSTM takes for the batch. The paper (arXiv 2412.12639, section 3.2) has the
LSTM "retain information about past tokens", so along the text; weights that were trained by the
code, mended, may have no recurrence. Both load and draft, so the recurrence is stated: `recurrence`
is `text` or `none`, in config.json (`sps train` writes it) or by the user.
"""

from spsbench.errors import DataError, UsageError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import (
    MANY,
    Description,
    FalconShape,
    Trained,
    layer_shape,
    whole,
)
from spsbench.models.heads.formats.format import (
    FRONTS,
    Format,
    Shapes,
    as_filed,
    has,
    layer_parameters,
    layers_in,
    target_of,
    tensor_names,
)

RECURRENCE = ("text", "none")
DEEP = 2  # layers of the LSTM


def knows(files: Checkpoint) -> bool:
    """Return whether there is an LSTM before the layers of EAGLE-1."""
    names = {name.removeprefix("model.") for name in files.headers}
    return "lstm.weight_ih_l0" in names and "layers.0.self_attn.q_proj.weight" in names


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe an LSTM and one layer; embeddings are copies of the target's."""
    where = files.config_path
    layer = as_filed(files, layer_shape(files.config, where))
    if (deep := layers_in(files, files.config, where)) != 1:
        raise DataError(
            f"{deep} layers ({files.folder}): expected 1. What rows of the text see in a "
            "second layer of Falcon depends on where blocks began, so such heads are not read"
        )
    vocab = whole(files.config, "vocab_size", where)
    shape = FalconShape(
        layer=layer,
        block=whole(files.config, "k_mask", where, most=MANY),
        recurrent=recurrence(files) == "text",
        bias=bool(files.config.get("bias", True)),
        vocab=vocab,
        own_embedding=has(files, "embed_tokens.weight"),
    )
    shapes = parameters(shape)
    names = tensor_names(files, shapes, {"layer": "layers.0"}, FRONTS)
    trained = Trained(target_of(files.config), layer.width, vocab)
    return Description("falcon", FALCON.writer, shape, trained, names, shapes, {})


def parameters(shape: FalconShape) -> Shapes:
    """Return names and shapes of the weights of `FalconNetwork`."""
    width = shape.layer.width
    shapes: Shapes = {}
    for i in range(DEEP):
        shapes[f"lstm.weight_ih_l{i}"] = (4 * width, width if i else 2 * width)
        shapes[f"lstm.weight_hh_l{i}"] = (4 * width, width)
        if shape.bias:
            shapes |= {f"lstm.bias_{part}_l{i}": (4 * width,) for part in ("ih", "hh")}
    shapes |= layer_parameters(shape.layer, "layer", width, normed=False)
    if shape.own_embedding:
        shapes["embed_tokens.weight"] = (shape.vocab, width)
    return shapes


def recurrence(files: Checkpoint) -> str:
    """Return how the LSTM is run, by the user's answer or the file's."""
    said = answered(str(files.answers.get("recurrence", ""))) or files.config.get("recurrence")
    if said is None:
        raise UsageError(
            f"{files.folder} does not say how its LSTM is run, and its authors' code cannot be run "
            "as published: expected recurrence in config.json. Say `drafter` falcon:recurrence=text"
            " (along the text, as in the paper), or recurrence=none (anew at every row); sps verify"
            " head tells which keeps more"
        )
    if said not in RECURRENCE:
        raise DataError(f"recurrence is {said!r} ({files.config_path}): expected text or none")
    return str(said)


def answered(said: str) -> str:
    """Check the user's answer; an empty one is allowed."""
    if said not in ("", *RECURRENCE):
        raise UsageError(f"falcon:recurrence={said}: expected text or none. Choose one")
    return said


FALCON = Format("Falcon", "falcon", knows, describe)
