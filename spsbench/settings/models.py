"""The models of a cell, how each is run, and the models that have short names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from spsbench.errors import UsageError
from spsbench.hardware.files import cache_home
from spsbench.settings.options import MACHINE, MODELS, Check, Option
from spsbench.spec import Spec

CHECKPOINT, RANDOM = "checkpoint", "random"  # weights
BLOCKS = "blocks"  # those of a GGUF file as it packs them: the distribution of its checkpoint
QUANTISED = ("int8", "int4", "int4-64")  # those of the checkpoint, rounded once they are loaded
"""One scale an output; a scale for 32 inputs; for 64. See `engines/quantization`."""
DTYPES = ("float64", "float32", "bfloat16", "float16")  # besides `auto`, the dtype of the weights
SERVED = "served"  # another engine has them, as `decoder` names it; nothing is loaded here
UNROUNDED = (CHECKPOINT, BLOCKS, RANDOM, SERVED)
WEIGHTS = (*UNROUNDED, *QUANTISED, *(f"{RANDOM}-{name}" for name in QUANTISED))
KNOWN = f"{', '.join((*UNROUNDED, *QUANTISED))} or {RANDOM}- and one of these"

SHAPE = "shape:"  # before WIDTHxDEPTH: a draft of that shape, with random weights
_SHAPE = re.compile(SHAPE + r"([1-9]\d{0,4})x([1-9]\d{0,2})(?::(.++))?", re.ASCII)
WIDTH_STEP, MAX_WIDTH, MAX_DEPTH = 8, 1 << 15, 256


class Shape(NamedTuple):
    """Width and number of layers of a language model."""

    width: int
    depth: int

    def __str__(self) -> str:
        return f"{self.width}x{self.depth}"


def parse_shape(name: str) -> tuple[Shape, str | None]:
    """Parse `shape:512x8[:nano]` -> shape, model named last or None; UsageError: no such shape."""
    match = _SHAPE.fullmatch(name)
    shape = Shape(int(match[1]), int(match[2])) if match else Shape(0, 0)
    in_range = shape.width <= MAX_WIDTH and shape.depth <= MAX_DEPTH
    if match is None or shape.width % WIDTH_STEP or not in_range:
        raise UsageError(
            f"`draft` {name}: expected shape:WIDTHxDEPTH such as shape:512x8, a width that is a "
            f"multiple of {WIDTH_STEP} up to {MAX_WIDTH} and at most {MAX_DEPTH} layers. Change it"
        )
    return shape, match[3]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model and how it is run. A draft model takes the target's options where it has no own.

    `weights` are those of the checkpoint, or random ones in its shape: for timing, without meaning;
    either of them quantised: another model; or the blocks of a GGUF file.

    Args:
        id: Name, folder or Hugging Face id of {model}.
        revision: Branch, tag or commit of {model} on the hub.
        weights: Weights of {model}: checkpoint; int8, int4 or int4-64 (quantised); blocks (as
            stored in a GGUF file); served (another engine has them); or random.
        adapter: PEFT adapter merged into {model}: a folder, or A=0.7+B=0.3; none is no adapter.
        trust_remote_code: Run the Python code in the repository of {model}; needs a pinned
            revision.
        engine: Engine that runs {model}; see sps list engines.
        device: Device of {model}: cpu, cuda, cuda:1 ...
        dtype: Data type of {model}; auto is float32 on a CPU, else the checkpoint's.
        attention: Attention implementation of {model}, by its name in transformers.
    """

    id: Annotated[str, Option(MODELS)]
    revision: Annotated[str | None, Option(MODELS)] = None
    weights: Annotated[str, Option(MODELS, Check(lambda name: name in WEIGHTS, KNOWN))] = CHECKPOINT
    adapter: Annotated[
        str, Option(MODELS, metavar="FOLDER", parse=lambda text, _: "" if text == "none" else text)
    ] = ""
    trust_remote_code: Annotated[bool, Option(MODELS)] = False
    engine: Annotated[Spec, Option(MACHINE)] = Spec("fast")
    device: Annotated[str, Option(MACHINE)] = "cpu"
    dtype: Annotated[str, Option(MACHINE)] = "auto"
    attention: Annotated[
        str | None, Option(MACHINE, flags=("attn-implementation",), metavar="NAME")
    ] = None
    parallel: str | None = None  # tp:N: N ranks share it, which torchrun started

    @property
    def ranks(self) -> int:
        """Return the number of processes that share the weights."""
        return 1 if self.parallel is None else int(self.parallel.removeprefix("tp:"))

    @property
    def random(self) -> bool:
        """Return whether the weights are random, so that the output has no meaning."""
        return self.weights.startswith(RANDOM)

    @property
    def served(self) -> bool:
        """Return whether another engine has the weights, so that there is no folder here."""
        return self.weights == SERVED

    @property
    def quantised(self) -> str | None:
        """Return the quantised format of the weights; None for trained or random ones."""
        name = self.weights.removeprefix(f"{RANDOM}-")
        return name if name in (BLOCKS, *QUANTISED) else None

    @property
    def name(self) -> str:
        """Return the name in tables, with the adapter and the quantised format."""
        return str(self if self.revision is None else replace(self, revision=None))

    def __str__(self) -> str:
        name = self.id if self.revision is None else f"{self.id}@{self.revision}"
        name += f" with {self.adapter}" if self.adapter else ""
        return name if self.quantised is None else f"{name} {self.quantised}"


class ModelFacts(NamedTuple):
    """What files say of a model; the answers may need a download."""

    template: Callable[[ModelSpec], bool] = lambda model: False  # whether it has one for chats
    sampling: Callable[[ModelSpec], Mapping[str, Any]] = lambda model: {}  # in its file's words
    family: Callable[[ModelSpec], str | None] = lambda draft: None  # drafter of a head; None: none


NOTHING = ModelFacts()  # for checks that touch no file

_WEIGHTS = Path(__file__).parents[1] / "weights"  # data alone, so that it can be a wheel of its own

DEFAULT_DRAFT: Mapping[str, str] = {"nano": "nano-draft"}
"""Bundled target -> its bundled draft model."""

DEFAULT_HEAD: Mapping[tuple[str, str], str] = {
    **{("nano", kind): f"nano-{kind}" for kind in ("eagle3", "medusa", "mlp", "mtp")},
    ("smollm2", "eagle3"): "smollm2-eagle3",
}
"""Target and drafter -> the bundled head for both."""

BUNDLED: Mapping[str, Path] = {
    name: _WEIGHTS / name for name in ("nano", "nano-draft", *DEFAULT_HEAD.values())
}
"""Name -> folder of each bundled model and head."""

HEAD_WEIGHTS: Mapping[str, str] = {"smollm2-eagle3": "int8"}
"""Bundled head -> its weights on a processor where none are asked for: they draft faster there."""

DEFAULT_DRAFTER: Mapping[str, tuple[str, str]] = {
    "smollm2": ("hybrid:first=suffix,then=eagle3", "payoff:costs=here")
}
"""Target -> drafter and schedule where nothing is named: the fastest that loses on no text."""

FETCHED = ("smollm2",)
"""Models that `sps models fetch` downloads."""


def fetched_folder(name: str) -> Path:
    """Return the folder of a downloaded model in the user's cache."""
    return cache_home() / "models" / name
