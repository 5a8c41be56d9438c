"""Heads from their folders; every check precedes the first weight.

Which tensors a head must have, and their shapes, is what its network says: it is made without
memory, and its state is compared with the files.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from spsbench.checkpoints.config import WIDTH, first_size
from spsbench.checkpoints.weights import stale_names
from spsbench.errors import DataError, SpsError, UsageError, first_line
from spsbench.heads.families import STATES, Family, prediction_layers, recognise_head
from spsbench.heads.files import Files, hidden_states, load_pickle

log = logging.getLogger(__name__)

FEW = 4  # names in a message
TRAINING = "training.json"  # beside a head that `sps train` wrote


@dataclass(frozen=True, slots=True)
class Head:
    """A head: all that its network needs. Its weights are there once they are loaded."""

    family: str  # the drafter that it is for
    writer: str  # whose names and flags these are
    shape: Any  # shape by its family's module
    network: Any  # (shape, layers of the target) -> the network
    names: Mapping[str, str]  # parameter, or map of its vocabulary -> tensor of the file
    files: Files
    tensors: dict[str, Tensor] = field(default_factory=dict)  # by the same
    kept: dict[str, Any] = field(default_factory=dict)  # caches what is made of them
    state: int | None = None  # the only hidden state of the target that it reads; None: the last
    target_mark: str | None = None  # hash of the target that it was trained for, where known

    def __str__(self) -> str:
        """Format as `eagle3, written by SpecForge, for Qwen/Qwen3-8B`."""
        target_name = f", for {self.files.target}" if self.files.target else ""
        return f"{self.family}, written by {self.writer}{target_name}"


def read_head(
    folder: Path,
    target: Mapping[str, Any],
    *,
    names: tuple[str, str],
    drafter: str,
    overrides: Mapping[str, Any],
    allow_pickle: bool,
) -> Head:
    """Read the head in `folder` without its weights, and check it against its target.

    `target` is the target's config; empty: the head alone is checked. The keywords are those of
    `recognise_head`. The tensors must be those of the network that the config describes, in number,
    name and shape. Raises DataError or UsageError: no head of that drafter, or one that does not
    fit the target.
    """
    files, family = recognise_head(
        folder, names=names, drafter=drafter, overrides=overrides, allow_pickle=allow_pickle
    )
    parts: Any = import_module(f"{__package__}.{family.module}")
    named = by_parameter(files, family)
    text = target.get("text_config")
    sizes = text if isinstance(text, Mapping) and "hidden_size" not in target else target
    layers = first_size(sizes, ("num_hidden_layers", "n_layer")) or None
    try:
        headers = {parameter: files.headers[name] for parameter, name in named.items()}
        shape = parts.shape(files, headers, layers)
        with torch.device("meta"):
            network = parts.network(shape, 0)
    except SpsError:
        raise
    except Exception as e:  # whatever bad numbers make of a shape or of a network
        raise DataError(
            f"config.json is not that of a head of {drafter} ({folder}): {first_line(e)}. "
            f"Expected what {family.writer} writes. Fetch the head again"
        ) from e
    writer = parts.writer(files) if hasattr(parts, "writer") else family.writer
    if "speculators_model_type" in files.config:
        writer = "speculators"
    names_read = check_tensors(files, named, network, f"{drafter} head", writer)
    state = only_state(shape, overrides, drafter)
    head = Head(drafter, writer, shape, parts.network, names_read, files, state=state)
    if target:
        check_head_target(head, sizes, layers, *names)
    return head


def only_state(shape: Any, overrides: Mapping[str, Any], drafter: str) -> int | None:
    """Return the hidden state that a user names for a head that reads one alone, else None.

    It is None too if the head's shape lists its own. UsageError: the user names several.
    """
    states = "" if hasattr(shape, "features") else overrides.get(STATES, "")
    if len(numbers := hidden_states(states, drafter)) > 1:
        raise UsageError(
            f"{drafter}:{STATES}={states}: expected one hidden state, all that this head reads. "
            "Name one"
        )
    return numbers[0] if numbers else None


def rewire(head: Head, flags: Mapping[str, str], layers: int) -> Head:
    """Return a loaded head with other values of its flags, over the same tensors, nothing cached.

    `flags` are values by the names in `families.FLAGS`, `layers` is the number of layers of the
    target. SpsError: the head cannot be run so.
    """
    files = replace(head.files, overrides={**head.files.overrides, **flags})
    headers = {parameter: files.headers[name] for parameter, name in head.names.items()}
    shape = import_module(head.network.__module__).shape(files, headers, layers)
    state = only_state(shape, files.overrides, head.family)
    return replace(head, files=files, shape=shape, state=state, kept={})


def by_parameter(files: Files, family: Family) -> dict[str, str]:
    """Return parameter -> its tensor's name, for what is read; DataError: two tensors for one."""
    named: dict[str, str] = {}
    layers = prediction_layers(files) if family.inside else []
    for name in files.headers:
        parameter = family.parameter(name, layers)
        if parameter and named.setdefault(parameter, name) != name:
            raise DataError(
                f"{named[parameter]} and {name} are one weight ({files.folder}): expected it "
                "once. Fetch it again"
            )
    return named


def check_tensors(
    files: Files, named: Mapping[str, str], network: Any, what: str, writer: str
) -> dict[str, str]:
    """Return parameter -> name of its tensor in the file, without copies of tied tensors.

    `named` is what `by_parameter` returns. Maps of the vocabulary are in the result if the file has
    them; it must have the first of `network.maps` where the vocabulary is reduced. DataError: a
    tensor is missing, unknown, or of another shape than `network` has. `what` and `writer` are
    words for messages.
    """
    shapes = {name: tuple(weight.shape) for name, weight in network.released().items()}
    shape: Any = network.shape
    rows = getattr(shape, "draft_vocab", shape.vocab)
    maps: Any = network.maps if hasattr(shape, "draft_vocab") else ()
    needed = maps[: rows != shape.vocab]
    shapes |= {
        name: (shape.vocab if name == "t2d" else rows,)
        for name in maps
        if name in named or name in needed
    }
    over: list[str] = []
    read: dict[str, str] = {}
    order = {parameter: i for i, parameter in enumerate(shapes)}
    for parameter in sorted(named, key=lambda name: order.get(name, len(order))):
        name, first = named[parameter], parameter
        for pattern, source in network.copies:  # a tied tensor is a copy of the first
            first = re.sub(pattern, source, first)
        if first in shapes and parameter not in shapes:
            expected = shapes[first]
        elif parameter in shapes:
            expected, read[parameter] = shapes[parameter], name
        else:
            over.append(name)
            continue
        if (size := files.headers[name].shape) != expected:
            raise DataError(
                f"{name} has the shape {format_shape(size)} ({files.folder}): expected "
                f"{format_shape(expected)} by config.json. Fetch it again"
            )
    if lacking := [as_written(name, named) for name in shapes if name not in read]:
        instead = f", and has {list_some(over)} that nothing reads" if over else ""
        raise DataError(
            f"the {what} lacks {list_some(lacking)}{instead} ({files.folder}): expected all of "
            f"{len(shapes)} tensors. Fetch it again"
        )
    if over:
        raise DataError(
            f"the {what} has {list_some(over)} that nothing reads ({files.folder}): expected no "
            f"other tensors than {writer} writes for this config.json. It is a kind of head that "
            "is not known"
        )
    return read


def as_written(parameter: str, named: Mapping[str, str]) -> str:
    """Return a missing `parameter`'s name in the file, by those of its kin; without kin, itself."""
    words = parameter.split(".")
    for i in range(len(words) - 1, 0, -1):
        front, ending = ".".join(words[:i]) + ".", ".".join(words[i:])
        for related, name in named.items():
            tail = related.removeprefix(front)
            if related.startswith(front) and name.endswith(f".{tail}"):
                return name.removesuffix(tail) + ending
    return parameter


def check_head_target(
    head: Head, sizes: Mapping[str, Any], layers: int | None, target: str, name: str
) -> None:
    """Raise DataError if width, vocabulary or layers of the target do not fit the head.

    `sizes` is the config of the target's text model, whose missing sizes are not checked; `layers`
    the number of its layers, if known: the hidden states that a head lists must be below it, that
    of `head.state` may equal it. `target` and `name` are those of both, as the user gave them.
    """
    shape, stated, where = head.shape, head.files.target, head.files.folder
    whose = f"{name} is a head for {stated or 'another target'}, not for {target} ({where})"
    if stated == target:
        whose = f"{name} does not fit {target}, which it names ({where})"
    width = getattr(shape, "target_width", getattr(shape, "width", None)) or shape.layer.width
    for keys, size in ((WIDTH, width), (("vocab_size",), shape.vocab)):
        if (theirs := first_size(sizes, keys)) not in (0, size):
            raise DataError(
                f"{whose}: expected a target with {keys[0]} {size}, and this one has {theirs}. "
                "Choose the head of this target, or fetch it again"
            )
    deepest = max(getattr(shape, "features", (head.state or 0,)))
    if layers is not None and deepest >= layers + (head.state is not None):
        raise DataError(
            f"{whose}: it reads hidden state {deepest}, and the target has {layers} layers: "
            f"expected a state below {layers}. Choose the head of this target"
        )


def list_some(names: list[str]) -> str:
    """Join the first `FEW` names, and say the number of the others."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def format_shape(shape: tuple[int, ...]) -> str:
    """Format a shape as `32x64`."""
    return "x".join(map(str, shape)) or "of one number"


def mark_of(model: nn.Module) -> str | None:
    """Return a hash of the last norm in bfloat16, which further training changes; None: no norm."""
    norms = [weight for weight in model.parameters() if weight.ndim == 1]
    if not norms:
        return None
    bits = norms[-1].detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8)
    return hashlib.sha256(bits.numpy().tobytes()).hexdigest()[:16]


def read_tensors(head: Head) -> dict[str, Tensor]:
    """Return parameter -> tensor on the CPU, as the files have them; DataError: NaN or infinite."""
    tensors: dict[str, Tensor] = {}
    names = set(head.names.values())
    for path in head.files.paths:
        if path.suffix != ".safetensors":
            weights = load_pickle(path, "cpu")
            tensors |= {name: weights[name] for name in names & weights.keys()}
            continue
        with safe_open(path, framework="pt") as opened:
            present = names & set(opened.keys())
            present -= stale_names(path, present)
            tensors |= {name: opened.get_tensor(name) for name in present}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not bool(torch.stack(torch.aminmax(tensor)).isfinite().all()):
            raise DataError(
                f"{name} has numbers that are not finite ({head.files.folder}): expected finite "
                "weights. Fetch the head again"
            )
    return {parameter: tensors[name] for parameter, name in head.names.items()}
