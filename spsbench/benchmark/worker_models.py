"""Models of a worker: loaded in the environment of the driver, and kept from unit to unit."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from spsbench.benchmark.models import Models
from spsbench.methods.build import forget_memories
from spsbench.models.cache import Choices, ModelCache
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from spsbench.workers.environment import check_environment, environment
from spsbench.workers.work import Work


@dataclass(frozen=True, kw_only=True)
class ModelWork(Work):
    """Work with models, which stay loaded, in the environment of the driver.

    Args:
        access: to the models.
        expected: the driver's environment.
        choices: what engines have chosen in this run.
        clock: the time that chat templates are told in this run.
    """

    access: Access
    expected: Mapping[str, Any]
    choices: Choices = field(default_factory=dict)
    clock: datetime | None = None

    @property
    @abstractmethod
    def folders(self) -> Mapping[ModelSpec, Path]:
        """Return the folders of the models on this machine."""

    def prepare(self) -> None:
        """Check this machine; no model is loaded.

        Raises:
            MismatchError: another environment than the driver's.
            SpsError: a model's file cannot be read.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        forget_memories()
        check_environment(self.expected, environment(self.folders))

    @cached_property
    def models(self) -> Models:
        """Return the models of this worker."""
        access = replace(self.access, threads=self.threads)
        return Models(ModelCache(access, choices=dict(self.choices), clock=self.clock))


def keep_choices(model_cache: ModelCache, chosen: Mapping[str, Any]) -> None:
    """Keep what engines of workers have chosen first: a resumed run keeps to it."""
    new = {name: choice for name, choice in chosen.items() if name not in model_cache.choices}
    if new:
        model_cache.choices.update(new)
        model_cache.chosen()
