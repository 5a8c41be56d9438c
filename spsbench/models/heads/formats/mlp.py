"""MLP speculators as IBM writes them (`ibm-ai-platform/*-accelerator`, `ibm-granite/*`).

Source: foundation-model-stack/fms-extras `speculator.py`. Names begin with `speculator.`. Of tied
weights a file may have every name, or the first ones alone: copies are not read.
"""

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import MANY, Description, MlpShape, Trained, whole
from spsbench.models.heads.formats.format import Format, Shapes, tensor_names

FRONTS = ("", "speculator.")
PARTS = ("emb.{}.weight", "proj.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias")


def knows(files: Checkpoint) -> bool:
    """Return whether the config names this format, or the file has a first stage."""
    said = files.config.get("model_type") == "mlp_speculator"
    parts = ("emb.0.weight", "proj.0.weight", "head.0.weight", "ln.0.weight")
    return said or any(all(front + p in files.headers for p in parts) for front in FRONTS)


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe stages of an embedding, a projection, a norm and a head."""
    config, where = files.config, files.config_path
    width = whole(config, "emb_dim", where)
    shape = MlpShape(
        width=width,
        inner=width if not config.get("inner_dim") else whole(config, "inner_dim", where),
        vocab=whole(config, "vocab_size", where),
        count=whole(config, "n_predict", where, most=MANY),
        tied=bool(config.get("tie_weights", False)),
        scaled=bool(config.get("scale_input", False)),
    )
    shapes = parameters(shape)
    names = tensor_names(files, shapes, {}, FRONTS)
    spare: dict[str, str] = {}
    for i in range(shape.count) if shape.tied else ():
        for part in PARTS:
            first = part.format(min(i, 1) if part.startswith("proj") else 0)
            for front in FRONTS:
                copy = front + part.format(i)
                if copy not in files.headers or copy in names.values():
                    continue
                spare[copy] = f"tied to {first}"
                if files.headers[copy].shape != shapes[first]:
                    raise DataError(
                        f"{copy} is not of the shape of {first}, to which it is tied "
                        f"({files.folder}): expected a copy. Fetch it again"
                    )
    trained = Trained(None, shape.width, shape.vocab)
    return Description("mlp", MLP.writer, shape, trained, names, shapes, spare)


def parameters(shape: MlpShape) -> Shapes:
    """Return names and shapes of the weights of `MlpNetwork`."""
    shapes: Shapes = {}
    inner = shape.inner
    for i in range(shape.count):
        if i == 0 or not shape.tied:
            shapes |= {
                f"emb.{i}.weight": (shape.vocab, inner),
                f"head.{i}.weight": (shape.vocab, inner),
                f"ln.{i}.weight": (inner,),
                f"ln.{i}.bias": (inner,),
            }
        if i < 2 or not shape.tied:
            shapes[f"proj.{i}.weight"] = (inner, inner if i else shape.width)
    return shapes


MLP = Format("IBM", "mlp", knows, describe)
