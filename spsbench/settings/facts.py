"""Facts that files tell of a model: a chat template, its own sampling, the drafter of a head."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spsbench.settings.models import ModelSpec


class ModelFacts(NamedTuple):
    """Functions of a model by its name; the answers may need a download.

    Attributes:
        template: whether the model has a chat template.
        sampling: the sampling that the model names itself, in the words of its file.
        family: the drafter of a head; None for other models.
    """

    template: Callable[[ModelSpec], bool] = lambda model: False
    sampling: Callable[[ModelSpec], Mapping[str, Any]] = lambda model: {}
    family: Callable[[ModelSpec], str | None] = lambda draft: None


NOTHING = ModelFacts()  # for checks that touch no file
