"""What must hold before torch and the Hugging Face libraries are imported."""

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from spsbench.cli.notes import say
from spsbench.environment import bad_temporary, bad_threads
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.models import hub
from spsbench.models.bundled import BUNDLED, DEFAULT_DRAFT
from spsbench.models.folder import check_folder, expanded, locate
from spsbench.options import Options
from spsbench.results import Cell, ModelRef

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?", re.ASCII)


def prepare(cell: Cell, *, offline: bool, allow_pickle: bool) -> None:
    """Check the environment and the local folders, and decide between online and offline.

    The libraries read HF_HUB_OFFLINE when they are imported, so this comes first; and a folder
    that cannot be used is told at once instead of after seconds of imports.

    Raises:
        SpsError: a variable, a package or a folder that cannot work.
    """
    check_environment()
    check_packages()
    refs = [ref for ref in (cell.target, cell.draft) if ref is not None]
    check_local(refs, trust_remote_code=cell.trust_remote_code, allow_pickle=allow_pickle)
    decide(offline, any(map(on_hub, refs)))


def prepare_tables(tables: Sequence[Options], *, offline: bool) -> None:
    """The same for a benchmark, whose data may come from the hub as well.

    Raises:
        SpsError: a variable, a package or a folder that cannot work.
    """
    check_environment()
    check_packages()
    trained = dict.fromkeys(ref for t in tables if not t.random_weights for ref in refs_of(t))
    check_local(trained, trust_remote_code=False, allow_pickle=False)
    data = any(t.task.split(":")[0] == "xsum" and t.data in (None, "auto", "hub") for t in tables)
    decide(offline, data or any(on_hub(ref) for table in tables for ref in refs_of(table)))


def refs_of(table: Options) -> list[ModelRef]:
    """The models of a table of settings, drafts by default among them."""
    drafts = table.draft or tuple(filter(None, map(DEFAULT_DRAFT.get, table.target)))
    targets = [ModelRef(name, table.revision) for name in table.target]
    return targets + [ModelRef(name, table.draft_revision) for name in drafts]


def check_local(refs: Iterable[ModelRef], **permitted: bool) -> None:
    """Check the folders among `refs`."""
    for ref in refs:
        if not on_hub(ref):
            check_folder(locate(ref, offline=True, say=say, **permitted), **permitted)


def decide(offline: bool, wanted: bool) -> None:
    """Stay online only if the hub is `wanted` and answers."""
    if offline or not wanted:
        hub.go_offline()
    elif not hub.reachable():
        say(f"the hub cannot be reached ({hub.endpoint()}): only what is cached can be used")
        hub.go_offline()


def on_hub(ref: ModelRef) -> bool:
    """Whether `ref` can only be a hub id: no path is ever asked for on the network."""
    there = expanded(ref.id).exists()
    return ref.id not in BUNDLED and bool(HUB_ID.fullmatch(ref.id)) and not there


def check_environment() -> None:
    """Variables that would break the libraries with messages of their own."""
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
