"""What a format is, and what several of them share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import Description
from spsbench.models.heads.shapes import LayerShape

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a head down."""

    writer: str
    family: str  # the drafter that reads it
    knows: Callable[[Checkpoint], bool]  # by its config and the names of its tensors
    describe: Callable[[Checkpoint, int | None], Description]
    """A checkpoint that it knows, and the number of layers of the target where it is known."""


def layer_parameters(shape: LayerShape, at: str, fed: int, normed: bool = True) -> Shapes:
    """Names and shapes of the weights of `layers.Layer` at `at`, with `fed` inputs of attention."""
    rows, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
    made: Shapes = {
        f"{attention}.q_proj.weight": (rows, fed),
        f"{attention}.k_proj.weight": (shared, fed),
        f"{attention}.v_proj.weight": (shared, fed),
        f"{attention}.o_proj.weight": (shape.width, rows),
        f"{mlp}.gate_proj.weight": (shape.inner, shape.width),
        f"{mlp}.up_proj.weight": (shape.inner, shape.width),
        f"{mlp}.down_proj.weight": (shape.width, shape.inner),
        f"{at}.post_attention_layernorm.weight": (shape.width,),
    }
    if normed:
        made[f"{at}.input_layernorm.weight"] = (shape.width,)
    if shape.qk_norm:
        made |= {f"{attention}.{name}_norm.weight": (shape.head_dim,) for name in "qk"}
    if shape.qkv_bias:
        made |= {
            f"{attention}.{name}_proj.bias": (rows if name == "q" else shared,) for name in "qkv"
        }
    if shape.out_bias:
        made[f"{attention}.o_proj.bias"] = (shape.width,)
    if shape.mlp_bias:
        made |= {f"{mlp}.{name}_proj.bias": (shape.inner,) for name in ("gate", "up")}
        made[f"{mlp}.down_proj.bias"] = (shape.width,)
    return made


def found_names(
    files: Checkpoint, parameters: Iterable[str], renamed: Mapping[str, str], fronts: Iterable[str]
) -> dict[str, str]:
    """Parameter -> tensor of the file, whichever of its names a writer has used.

    Args:
        files: the head.
        parameters: of the network.
        renamed: beginnings of their names -> what writers put in their place, parted by spaces.
        fronts: what may stand before a name, such as `model.`.

    Raises:
        DataError: two tensors that are the same parameter.
    """
    made: dict[str, str] = {}
    for parameter in parameters:
        stems = [parameter]
        for own, theirs in renamed.items():
            if parameter == own or parameter.startswith(f"{own}."):
                stems = [each + parameter.removeprefix(own) for each in theirs.split()]
                break
        there = [
            front + stem for stem in stems for front in fronts if front + stem in files.headers
        ]
        if len(there) > 1:
            raise DataError(
                f"{there[0]} and {there[1]} are one weight ({files.folder}): expected it once. "
                "Fetch it again"
            )
        made[parameter] = there[0] if there else stems[0]
    return made
