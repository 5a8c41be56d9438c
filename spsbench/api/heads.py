"""Heads among the drafts that a user names: the drafter follows by itself (no torch)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.errors import SpsError
from spsbench.models.config import read_config
from spsbench.models.folder import local_folder, locate
from spsbench.models.gguf.header import named_gguf
from spsbench.models.heads.formats.table import FORMATS
from spsbench.models.heads.reading import described, family_of
from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import SELF
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from spsbench.settings.sweep import Sweep

HEADS = frozenset(each.family for each in FORMATS)
"""Drafters that read a head in a known format."""


def followed(asked: Mapping[str, Any], access: Access) -> dict[str, Any]:
    """Options with the drafter of the head that `draft` names, where no drafter is named."""
    draft = asked.get("draft")
    if (
        draft is None
        or draft.startswith(SELF)
        or asked.get("drafter") is not None
        or asked.get("k") == 0
    ):
        return dict(asked)
    family = family_at(ModelSpec(draft, asked.get("draft_revision")), access)
    return {**asked, "drafter": family} if family else dict(asked)


def followed_in(table: Sweep, access: Access) -> Sweep:
    """The same for a table, each of whose drafts has a drafter of its own."""
    if "drafter" in table.cells:
        return table
    revisions = table.cells.get("draft_revision", (None,))
    return replace(table, heads=heads_in(table.cells.get("draft", ()), revisions[0], access))


def heads_in(drafts: Iterable[str], revision: str | None, access: Access) -> dict[str, str]:
    """The drafters of those drafts that are heads."""
    return {
        draft: family
        for draft in drafts
        if not draft.startswith(SELF) and (family := family_at(ModelSpec(draft, revision), access))
    }


def family_at(draft: ModelSpec, access: Access) -> str | None:
    """The drafter of a head; of a hub's repository its files are fetched for that.

    None for what is no head, and for what cannot be looked at: that is told when it is loaded.

    Raises:
        DataError: a head of a kind that is not known.
    """
    try:
        folder = found_folder(draft, access)
    except (SpsError, OSError):
        return None
    return None if folder is None else family_of(folder)


def found_folder(draft: ModelSpec, access: Access) -> Path | None:
    """Where a draft lies, once it is fetched; None for a file that is no folder."""
    if named_gguf(draft.id):
        return None
    local = local_folder(draft.id)
    if local is not None:
        return local
    return locate(
        draft,
        offline=access.offline,
        allow_pickle=access.allow_pickle,
        trust_remote_code=draft.trust_remote_code,
    )


def check_heads(cells: Iterable[Cell], access: Access) -> None:
    """Check the heads that lie in local folders against their targets, before torch is imported.

    Raises:
        SpsError: no head, a damaged one, or one for another drafter or target.
    """
    seen = set()
    for cell in cells:
        models, drafter = cell.models, cell.method.drafter
        if models.draft is None or drafter.name not in HEADS or models.draft.random:
            continue
        if (models, drafter) in seen:
            continue
        seen.add((models, drafter))
        draft = local_folder(models.draft.id)
        target = None if named_gguf(models.target.id) else local_folder(models.target.id)
        if draft is None:
            continue
        described(
            draft,
            {} if target is None else read_config(target),
            names=(models.target.id, models.draft.id),
            family=drafter.name,
            answers=dict(drafter.args),
            allow_pickle=access.allow_pickle,
        )
