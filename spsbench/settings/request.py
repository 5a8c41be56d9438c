"""A request: what a command was asked for, resolved once into a cell and access to its models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import Access, access_of


@dataclass(frozen=True, slots=True)
class CellRequest:
    """A cell, the options that describe it, and access to its models."""

    cell: Cell
    options: Mapping[str, Any]  # of the cell; those that were not given are left out
    access: Access

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Read the options of `spsbench.load`; None counts as not given.

        Raises:
            UsageError: as `make_cell`.
        """
        access, of_cell = access_of(options)
        of_cell = {name: value for name, value in of_cell.items() if value is not None}
        return cls(make_cell(**of_cell), of_cell, access)
