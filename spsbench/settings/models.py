"""The models of a cell: which they are, and how each is run."""

from dataclasses import dataclass
from typing import Annotated

from spsbench.settings.option import MACHINE, MODELS, Check, Option
from spsbench.spec import Spec

CHECKPOINT, RANDOM = "checkpoint", "random"  # weights
QUANTISED = ("int8", "int4", "int4-64")  # those of the checkpoint, rounded once they are loaded
"""One scale an output; a scale for 32 inputs; for 64. `engines.quantised` has what they are."""
WEIGHTS = (CHECKPOINT, RANDOM, *QUANTISED, *(f"{RANDOM}-{name}" for name in QUANTISED))

KNOWN = f"{CHECKPOINT}, {', '.join(QUANTISED)}, {RANDOM} or {RANDOM}- and one of these"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. A draft model has what is asked for the target, unless it is asked otherwise.

    `weights` are those of the checkpoint, or random ones in its shape: for timing, without meaning;
    either of them quantised: another model, with a law of its own.
    """

    id: Annotated[str, Option("Bundled name, folder or hub id of {model}.", MODELS)]
    revision: Annotated[str | None, Option("Hub revision of {model}.", MODELS)] = None
    weights: Annotated[
        str,
        Option(
            "Weights of {model}: checkpoint; int8, int4 or int4-64: that, quantised; or random.",
            MODELS,
            Check(lambda name: name in WEIGHTS, KNOWN),
        ),
    ] = CHECKPOINT
    trust_remote_code: Annotated[
        bool, Option("Run the code in the repository of {model}; needs a pinned revision.", MODELS)
    ] = False
    engine: Annotated[Spec, Option("How {model} is run.", MACHINE)] = Spec("fast")
    device: Annotated[str, Option("Where {model} is: cpu, cuda, cuda:1 ...", MACHINE)] = "cpu"
    dtype: Annotated[
        str, Option("Of {model}; auto: float32 on a CPU, else the checkpoint's.", MACHINE)
    ] = "auto"
    attention: Annotated[
        str | None,
        Option(
            "Attention of {model}, as transformers names it.",
            MACHINE,
            flags=("attn-implementation",),
            metavar="NAME",
        ),
    ] = None

    @property
    def random(self) -> bool:
        """Whether its output has no meaning."""
        return self.weights.startswith(RANDOM)

    @property
    def quantised(self) -> str | None:
        """The format of its weights; None: they are as trained, or drawn."""
        name = self.weights.removeprefix(f"{RANDOM}-")
        return name if name in QUANTISED else None

    def __str__(self) -> str:
        name = self.id if self.revision is None else f"{self.id}@{self.revision}"
        return name if self.quantised is None else f"{name} {self.quantised}"


@dataclass(frozen=True, slots=True)
class Models:
    """A target, and a draft model where the method has one."""

    target: ModelSpec
    draft: ModelSpec | None = None

    @property
    def all(self) -> list[ModelSpec]:
        """The target first."""
        return [model for model in (self.target, self.draft) if model is not None]

    @property
    def random(self) -> bool:
        """Whether any of them has random weights, so that the text has no meaning."""
        return any(model.random for model in self.all)
