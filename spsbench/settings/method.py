"""The identity of a method: `Drafting` is the key of costs and traces, `Method` that of forecasts.

`str(Drafting)` is the label of a draft in files of traces and costs, and `Drafting.parse` reads it
back: nothing else writes or reads such a label.
"""

from typing import NamedTuple

from spsbench.settings.cell import Configuration, constant, k_of
from spsbench.settings.models import BLOCKS, DTYPES, QUANTISED, SHAPE
from spsbench.spec import Spec

RANDOM = " (random)"


class Drafting(NamedTuple):
    """How a text is drafted: a drafter with its model, whatever the version of a plug-in's file."""

    drafter: Spec  # `Spec("")` where a model drafts in an engine of its own
    model: str = ""  # its id, with the revision after an @; "": the drafter has none
    quantised: str = ""  # the format of the model's weights; "": they are not quantised
    dtype: str = ""  # the model's, where it is not the target's
    random: bool = False  # whether the model's weights are random

    @classmethod
    def of(cls, cell: Configuration) -> "Drafting":
        """Return how a cell drafts: equal to what `parse` reads from its label."""
        model = cell.draft
        if model is None:
            return cls.parse(str(cell.drafter))
        dtype = "" if model.dtype == cell.target.dtype else model.dtype
        name, quantised = str(model).removesuffix(f" {model.quantised}"), model.quantised or ""
        return cls.parse(str(cls(cell.drafter, name, quantised, dtype, model.random)))

    @classmethod
    def parse(cls, label: str) -> "Drafting":
        """Parse a label such as `ngram:n=3` or `model nano-draft int8 float16 (random)`.

        A drafter ends at the first blank; the path of a plug-in may have blanks up to its class.
        ValueError: the label begins with no spec of a drafter.
        """
        words = label.removesuffix(RANDOM).split(" ")
        end = next((i for i in range(1, len(words)) if _is_whole(" ".join(words[:i]))), len(words))
        drafter, words = Spec.parse(" ".join(words[:end])), words[end:]
        dtype = words.pop() if len(words) > 1 and words[-1] in ("auto", *DTYPES) else ""
        quantised = words.pop() if len(words) > 1 and words[-1] in (BLOCKS, *QUANTISED) else ""
        return cls(drafter, " ".join(words), quantised, dtype, label.endswith(RANDOM))

    @property
    def is_shape(self) -> bool:
        """Return whether the model is a shape with random weights, of which only times count."""
        return self.model.startswith(SHAPE)

    def __str__(self) -> str:
        words = str(self.drafter), self.model, self.quantised, self.dtype
        return " ".join(filter(None, words)) + RANDOM * self.random


class Method(NamedTuple):
    """How a text is drafted, by which rule it is verified, and how K is chosen."""

    drafting: Drafting
    verifier: str  # spec of the rule, as text
    schedule: Spec | None = None  # None: the group of all methods that differ in it alone

    @classmethod
    def of(cls, cell: Configuration) -> "Method":
        """Return the method of a cell."""
        schedule = cell.schedule if cell.k is None else constant(cell.k)
        return cls(Drafting.of(cell), str(cell.verifier), schedule)

    @property
    def k(self) -> int | None:
        """Return the tokens drafted per round; None where they vary or are not known."""
        return None if self.schedule is None else k_of(self.schedule)

    @property
    def group(self) -> "Method":
        """Return the method without its schedule."""
        return self._replace(schedule=None)

    @property
    def at_any_k(self) -> "Method":
        """Return the method without its schedule where that is a K."""
        return self if self.k is None else self.group

    def __str__(self) -> str:
        depth = str(self.schedule or "") if self.k is None else f"K = {self.k}"
        return ", ".join(filter(None, (str(self.drafting), depth, self.verifier)))


def _is_whole(text: str) -> bool:
    """Return whether `text` is no path without a class, and so may be a whole drafter."""
    name, colon, _ = text.partition(":")
    return "/" not in name or bool(colon)
