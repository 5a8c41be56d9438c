"""Heads of EAGLE-1 and EAGLE-2 as their authors write them; those of HASS have the same names.

Source: SafeAILab/EAGLE, `cnets1.py` and `ea_model.py`. The config is that of a Llama of one layer;
`bias` says whether `fc` has one, and absent it has. vLLM's copies have `model.` before the names.
"""

from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import (
    Description,
    EagleShape,
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
    tensor_names,
)


def knows(files: Checkpoint) -> bool:
    """Return whether there are `fc` and layers without a norm of features, not by speculators."""
    names = {name.removeprefix("model.") for name in files.headers}
    is_plain = "speculators_model_type" not in files.config
    layered = "layers.0.self_attn.q_proj.weight" in names
    return (
        is_plain and layered and "fc.weight" in names and "layers.0.hidden_norm.weight" not in names
    )


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe one or more layers over `fc`; embeddings are copies of the target's."""
    where = files.config_path
    layer = as_filed(files, layer_shape(files.config, where))
    depth = layers_in(files, files.config, where)
    vocab = whole(files.config, "vocab_size", where)
    shape = EagleShape(
        layer=layer,
        depth=depth,
        fc_bias=bool(files.config.get("bias", True)),
        vocab=vocab,
        own_embedding=has(files, "embed_tokens.weight"),
    )
    shapes: Shapes = {"fc.weight": (layer.width, 2 * layer.width)}
    if shape.fc_bias:
        shapes["fc.bias"] = (layer.width,)
    for i in range(depth):
        shapes |= layer_parameters(layer, f"stack.{i}", layer.width, normed=i > 0)
    if shape.own_embedding:
        shapes["embed_tokens.weight"] = (vocab, layer.width)
    names = tensor_names(files, shapes, {"stack": "layers"}, FRONTS)
    trained = Trained(None, layer.width, vocab)
    return Description("eagle", EAGLE.writer, shape, trained, names, shapes, {})


EAGLE = Format("EAGLE", "eagle", knows, describe)
