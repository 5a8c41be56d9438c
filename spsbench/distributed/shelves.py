"""The models of workers, and what engines chose there: the driver keeps the first choice."""

from collections.abc import Mapping
from typing import Any

from spsbench.benchmark.models import Models
from spsbench.models.shelf import Choices, Shelf
from spsbench.settings.execution import Access


def models_of(access: Access, threads: int | None, choices: Choices) -> Models:
    """A worker's; what there is to say of models the driver has said."""
    shelf = Shelf(
        offline=access.offline,
        allow_pickle=access.allow_pickle,
        threads=threads,
        choices=dict(choices),
    )
    return Models(shelf)


def take_over(shelf: Shelf, chosen: Mapping[str, Any]) -> None:
    """Keep what engines chose: a resumed run keeps to it."""
    new = {name: choice for name, choice in chosen.items() if name not in shelf.choices}
    if new:
        shelf.choices.update(new)
        shelf.chosen()
