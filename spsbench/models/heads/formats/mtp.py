"""Multi-token prediction (MTP) layers: in the files of the target itself, or cut out of them.

Sources: vllm-project/speculators `mtp/model_definitions.py` and its converter (`mtp_layers.0`),
vLLM's loader of MiMo (`model.mtp_layers.0`, whose projection reads the feature first), and Qwen's
names (`mtp.fc`, `mtp.layers.0`). Of a target's own files only these tensors are read; transformers
leaves them out. Layers other than Llama's and Qwen2's or 3's (gated attention, experts, latent
attention) are refused.
"""

from collections.abc import Mapping
from typing import Any

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import Description, MtpShape, Trained, layer_shape, whole
from spsbench.models.heads.formats.format import Format, Shapes, layer_parameters
from spsbench.models.heads.formats.speculators import part, verifier

PLAIN = ("llama", "qwen2", "qwen3", "mistral", "mimo")
CUT_OUT = "mtp_layers.0."
OWN = {"fc": "input_proj", "norm_embedded": "token_layernorm", "norm_feature": "hidden_layernorm"}
QWEN = {"fc": "fc", "norm_embedded": "pre_fc_norm_embedding", "norm_feature": "pre_fc_norm_hidden"}


def knows_own(files: Checkpoint) -> bool:
    """Return whether an MTP layer was cut out of a target, as speculators does."""
    return files.config.get("speculators_model_type") == "mtp"


def knows_inside(files: Checkpoint) -> bool:
    """Return whether this is a language model with MTP layers."""
    first = ("mtp.fc.weight", f"model.{CUT_OUT}input_proj.weight")
    return "speculators_model_type" not in files.config and any(f in files.headers for f in first)


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe one layer over `fc` [H, 2H], between norms."""
    config, where = files.config, files.config_path
    cut = knows_own(files)
    text = config.get("text_config")
    sizes: Mapping[str, Any] = config if not isinstance(text, Mapping) else text
    if cut:
        sizes = part(config, "transformer_layer_config", where)
    kind = str(sizes.get("model_type") or "llama")
    if kind not in PLAIN:
        raise DataError(
            f"a prediction layer of {kind} ({where}): expected layers as {', '.join(PLAIN)} have "
            "them. Draft with `drafter` ngram, or another head of this target"
        )
    layer = layer_shape({**sizes, "model_type": "qwen2"} if kind == "mimo" else sizes, where)
    qwen = "mtp.fc.weight" in files.headers
    shape = MtpShape(
        layer=layer, vocab=whole(sizes, "vocab_size", where), hidden_first=not cut and not qwen
    )
    shapes: Shapes = {
        "fc.weight": (layer.width, 2 * layer.width),
        "norm_embedded.weight": (layer.width,),
        "norm_feature.weight": (layer.width,),
        "norm.weight": (layer.width,),
        **layer_parameters(layer, "layer", layer.width),
    }
    front = "mtp." if qwen else CUT_OUT if cut else f"model.{CUT_OUT}"
    words = QWEN | {"norm": "norm", "layer": "layers.0"} if qwen else OWN
    names = {name: renamed(name, front, words) for name in shapes}
    more = [n for n in files.headers if n.startswith(front.removesuffix("0.")) and n not in names]
    unread = sorted(set(more) - set(names.values()))
    spare = {} if cut else {n: "the target's" for n in files.headers if n not in unread}
    spare = {name: why for name, why in spare.items() if name not in names.values()}
    trained = Trained(verifier(config) if cut else None, layer.width, shape.vocab)
    writer = "speculators" if cut else "its target's authors"
    return Description("mtp", writer, shape, trained, names, shapes, spare)


def renamed(parameter: str, front: str, words: Mapping[str, str]) -> str:
    """Return a parameter's name in the file; parts of the layer are beside the norms, or below."""
    first, _, suffix = parameter.partition(".")
    if first == "layer":
        return front + (f"{words['layer']}.{suffix}" if "layer" in words else suffix)
    if first == "norm":
        return f"{front}{words.get('norm', 'final_layernorm')}.{suffix}"
    return f"{front}{words[first]}.{suffix}"


MTP = Format("speculators", "mtp", knows_own, describe)
MTP_INSIDE = Format("its target's authors", "mtp", knows_inside, describe, inside=True)
