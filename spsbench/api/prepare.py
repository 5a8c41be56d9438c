"""What must hold before torch and the Hugging Face libraries are imported."""

import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from spsbench.api.heads import HEADS, check_heads
from spsbench.api.ranks import check_ranks
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.hardware.disks import VARIABLE, bad_share
from spsbench.hardware.environment import bad_temporary, bad_threads
from spsbench.hardware.ranks import ranks
from spsbench.hardware.spinning import bound_spinning
from spsbench.models import hub
from spsbench.models.folder import check_folder, expanded, locate, named
from spsbench.models.gguf.header import named_gguf, read_header
from spsbench.plugins import is_ours
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.settings.experiment import may_need_hub
from spsbench.settings.models import ModelSpec
from spsbench.settings.sweep import Sweep, cells_of

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?", re.ASCII)


def prepare(cell: Cell, access: Access) -> None:
    """Check the environment and the local folders, and decide between online and offline.

    The libraries read HF_HUB_OFFLINE when they are imported, so this comes first; and a folder
    that cannot be used is told at once instead of after seconds of imports.

    Raises:
        SpsError: a variable, a package or a folder that cannot work.
    """
    prepare_cells([cell], access)


def prepare_cells(cells: Sequence[Cell], access: Access, hub: bool = False) -> None:
    """The same for several; `hub` says that data may come from there as well.

    Raises:
        SpsError: a variable, a package or a folder that cannot work.
    """
    check_environment()
    check_packages()
    check_local(checkpoints(cells), access)
    check_ranks((model for cell in cells for model in cell.models.all), access.rank_timeout)
    check_heads(cells, access)
    decide(access, hub or any(on_hub(model) for cell in cells for model in cell.models.all))


def prepare_ranks(cell: Cell, access: Access) -> None:
    """Check the models of a cell before its ranks are started, where they have to be.

    Raises:
        MissingRanksError: the models can be shared, and there is one process alone.
        SpsError: a variable, a package, a folder or a number of ranks that cannot work.
    """
    if cell.models.ranks > ranks().size == 1:
        prepare(cell, access)


def prepare_tables(tables: Sequence[Sweep], access: Access) -> None:
    """The same for a benchmark, whose data may come from the hub as well.

    Raises:
        SpsError: a variable, a package or a folder that cannot work.
    """
    cells = [cell for table in tables for cell in cells_of(table)]
    prepare_cells(cells, access, any(map(may_need_hub, tables)))


def checkpoints(cells: Iterable[Cell]) -> list[ModelSpec]:
    """Models whose folders are those of language models.

    What a drafter of another package reads from its folder only its plan says, which takes torch.
    """
    found = []
    for cell in cells:
        found += [cell.models.target]
        drafter = cell.method.drafter
        if cell.models.draft is None or drafter.name in HEADS:
            continue
        if is_ours("drafters", drafter):
            found += [cell.models.draft]
    return [model for model in dict.fromkeys(found) if not model.random]


def check_local(models: Iterable[ModelSpec], access: Access) -> None:
    """Check the folders among `models`."""
    for model in models:
        if named_gguf(model.id) and expanded(model.id).is_file():
            read_header(expanded(model.id))  # to unpack it takes the libraries
        elif not on_hub(model):
            permitted = {
                "trust_remote_code": model.trust_remote_code,
                "allow_pickle": access.allow_pickle,
            }
            check_folder(locate(model, offline=True, **permitted), **permitted)


def decide(access: Access, wanted: bool) -> None:
    """Stay online only if the hub is `wanted` and answers.

    Where its library is imported already, as in a notebook, it cannot be told any more: what is
    fetched is fetched by `hub.fetch`, which keeps to `offline` by itself.
    """
    if not access.offline and wanted:
        if hub.reachable():
            return
        log.info(f"the hub cannot be reached ({hub.endpoint()}): only what is cached can be used")
    if not hub.imported():
        hub.go_offline()


def on_hub(ref: ModelSpec) -> bool:
    """Whether `ref` can only be a hub id: no path is ever asked for on the network."""
    there = os.path.exists(expanded(ref.id))  # False for a name that cannot be
    ours = named(ref.id) or named_gguf(ref.id)
    return not ours and bool(HUB_ID.fullmatch(ref.id)) and not there


def check_environment() -> None:
    """Variables that would break the libraries with messages of their own, or slow them down."""
    bound_spinning()
    if (threads := bad_threads()) is not None:
        raise UsageError(
            f"OMP_NUM_THREADS is {threads!r} (environment): expected 1 or more. "
            "Set it so, or unset it and use --threads"
        )
    if (temporary := bad_temporary()) is not None:
        raise MissingError(
            f"TMPDIR is {temporary!r} (environment): expected an existing folder. "
            "Create it or unset TMPDIR"
        )
    if (share := bad_share()) is not None:
        raise UsageError(
            f"{VARIABLE} is {share!r} (environment): expected a number of GB from 0. "
            "Set it so, or unset it"
        )


def check_packages() -> None:
    """A file called torch.py on the import path would be taken for torch."""
    for name in ("torch", "transformers"):
        found = find_spec(name)
        if found is None:
            raise MissingError(f"{name} is not installed ({sys.prefix}): expected it. Install it")
        if not found.submodule_search_locations:
            raise DataError(
                f"{name} is hidden by a file of that name ({found.origin}): expected the package. "
                "Rename the file, or leave its folder out of PYTHONPATH"
            )
