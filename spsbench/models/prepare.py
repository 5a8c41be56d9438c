"""Checks before torch is imported: the environment, packages, folders, heads and ranks."""

import logging
import os
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TypeVar

from spsbench.checkpoints.config import check_divisible, expand_path, read_config
from spsbench.errors import DataError, MissingError, SpsError, UsageError
from spsbench.hardware.environment import bound_spinning, variable_errors
from spsbench.hardware.ranks import missing_ranks, ranks
from spsbench.heads.families import family_of, head_part, recognise_head
from spsbench.models import hub
from spsbench.models.chat import has_template, own_sampling
from spsbench.models.folder import check_folder, is_bundled_name, is_hub_id, local_folder, locate
from spsbench.models.gguf.header import named_gguf, read_header
from spsbench.plugins import is_ours
from spsbench.settings.cell import CONSTANT, CellRequest, Configuration
from spsbench.settings.cell_from_options import SELF
from spsbench.settings.execution import Access
from spsbench.settings.method import Drafting
from spsbench.settings.models import CHECKPOINT, ModelFacts, ModelSpec

log = logging.getLogger(__name__)
T = TypeVar("T")


def facts_of(access: Access) -> ModelFacts:
    """Return functions that tell what files say of a model under `access`, read once and cached."""
    return ModelFacts(
        cache(partial(has_template, access=access)),
        cache(partial(own_sampling, access=access)),
        cache(partial(family_at, access=access)),
    )


def note_default_drafters(cells: Iterable[Configuration], options: Container[str]) -> None:
    """Log what drafts in `cells` where the `options` name neither a drafter nor a draft model."""
    speculative = [cell for cell in cells if cell.drafter.name != "none" and not cell.elsewhere]
    if "drafter" in options or "draft" in options or not speculative:
        return
    listed = " and ".join(dict.fromkeys(map(_drafting, speculative)))
    alone = {cell.drafter.name for cell in speculative} == {"ngram"}
    hint = "; name a draft model with `draft`" if alone else ""
    log.info(f"note: drafting with {listed}, since none was named{hint}")


def _drafting(cell: Configuration) -> str:
    """Return the drafter of a cell with its model, and its schedule if K is not constant."""
    words, schedule = str(Drafting.of(cell)), cell.schedule
    if cell.drafter.name == "ngram":
        words += " (prompt lookup)"
    return words if schedule.name == CONSTANT else f"{words} under schedule {schedule}"


def heads_in(drafts: Iterable[str], revision: str | None, facts: ModelFacts) -> dict[str, str]:
    """Return draft -> drafter of those `drafts` that are heads; `revision` is that of hub ids."""
    models = {draft: ModelSpec(draft, revision) for draft in drafts if not draft.startswith(SELF)}
    return {draft: name for draft, model in models.items() if (name := facts.family(model))}


def family_at(draft: ModelSpec, access: Access) -> str | None:
    """Return a head's drafter, fetched if need be; None: none, or not found. SpsError: damaged."""
    if named_gguf(draft.id):
        return None
    try:
        folder = local_folder(draft.id) or locate(draft, access)
    except (SpsError, OSError):
        return None
    return family_of(folder)


def check_heads(cells: Iterable[CellRequest], access: Access) -> None:
    """Check local heads by their files for the drafters that read them; SpsError: one is unfit."""
    seen = set()
    for cell in cells:
        target, draft, drafter = cell.target, cell.draft, head_part(cell.drafter)
        if draft is None or drafter is None or draft.random or (target, draft, drafter) in seen:
            continue
        seen.add((target, draft, drafter))
        if (folder := local_folder(draft.id)) is None:
            continue
        recognise_head(
            folder,
            names=(target.id, draft.id),
            drafter=drafter.name,
            overrides=dict(drafter.args),
            allow_pickle=access.allow_pickle,
        )


def check_ranks(models: Iterable[ModelSpec]) -> None:
    """Join the ranks that share a model, if one of `models` is shared; else do nothing.

    UsageError: ranks and no shared model, one for another number of ranks, or no checkpoint.
    DataError: sizes of a local model that the ranks do not divide.
    """
    shared, size = [model for model in models if model.ranks > 1], ranks().size
    if other := next((model for model in shared if model.weights != CHECKPOINT), None):
        raise UsageError(
            f"`weights` {other.weights} over several ranks: expected a checkpoint, of which each "
            "rank reads its share. Start one process"
        )
    for model in shared:
        if model.ranks != size:
            raise missing_ranks(str(model), model.ranks)
        folder = None if named_gguf(model.id) else local_folder(model.id)
        if folder is not None:
            check_divisible(read_config(folder), model.ranks, folder)
    if size > 1 and not shared:
        raise UsageError(
            f"{size} ranks (torchrun): expected a model that they share. Leave torchrun out"
        )
    if shared:
        from spsbench.parallel.process_group import join_group

        join_group()


def read_once(request: CellRequest, access: Access, read: Callable[[], T]) -> T:
    """Return `read()`; ranks with one model `prepare_access` first, and read by `on_rank_0`."""
    if request.ranks == 1:
        return read()
    prepare_access([request], access)
    from spsbench.parallel.process_group import on_rank_0

    return on_rank_0(read)


def prepare_access(requests: Sequence[CellRequest], access: Access, hub: bool = False) -> None:
    """Check environment, local folders, ranks and heads; decide between online and offline.

    The libraries read HF_HUB_OFFLINE when they are imported, so this check comes first; an unusable
    folder is then reported before seconds of imports. Ranks that share a model are joined. `hub`:
    whether data may come from the hub. SpsError: something is unusable or missing.
    """
    models = [model for request in requests for model in request.models]
    check_environment()
    check_local(checkpoints(requests), access)
    check_ranks(models)
    check_heads(requests, access)
    decide(access, hub or any(map(on_hub, models)))


def checkpoints(cells: Iterable[CellRequest]) -> list[ModelSpec]:
    """Return the models with weights in `cells`, each once: targets, and draft models but no heads.

    Random and served ones are left out, and those of plug-in drafters, whose plans need torch.
    """
    models = []
    for cell in cells:
        models.append(cell.target)
        draft = None if cell.elsewhere or head_part(cell.drafter) is not None else cell.draft
        if draft is not None and is_ours("drafters", cell.drafter):
            models.append(draft)
    return [model for model in dict.fromkeys(models) if not (model.random or model.served)]


def check_local(models: Iterable[ModelSpec], access: Access) -> None:
    """Check the folders and GGUF files among `models`; SpsError: one is unusable, or not here."""
    for model in models:
        if named_gguf(model.id) and expand_path(model.id).is_file():
            read_header(expand_path(model.id))  # unpacking needs the libraries
        elif not on_hub(model):
            check_folder(locate(model, access), model, access)


def decide(access: Access, needs_hub: bool) -> None:
    """Set the libraries offline, unless the hub is needed, may be asked, and answers.

    A hub that does not answer is noted. If its library is already imported, as in a notebook,
    HF_HUB_OFFLINE has no effect; `hub.fetch_snapshot` then follows `offline` itself.
    """
    if not access.offline and needs_hub:
        if hub.reachable():
            return
        log.info(
            f"the hub cannot be reached ({hub.hub_address()}): only what is cached can be used"
        )
    hub.go_offline()


def on_hub(ref: ModelSpec) -> bool:
    """Return whether `ref` can only be a hub id; paths are never looked up on the network."""
    is_path = os.path.exists(expand_path(ref.id))  # False for an invalid name
    ours = is_bundled_name(ref.id) or named_gguf(ref.id) or ref.served
    return not ours and is_hub_id(ref.id) and not is_path


def check_environment() -> None:
    """Bound how long threads spin, and check what torch and transformers would fail at.

    SpsError: a variable has a value that breaks them. MissingError: one is not installed.
    DataError: a file such as torch.py hides it.
    """
    bound_spinning()
    for error in variable_errors():
        raise error
    for name in ("torch", "transformers"):
        if (package := find_spec(name)) is None:
            raise MissingError(f"{name} is not installed ({sys.prefix}): expected it. Install it")
        if not package.submodule_search_locations:
            raise DataError(
                f"{name} is hidden by a file of that name ({package.origin}): expected the "
                "package. Rename the file, or leave its folder out of PYTHONPATH"
            )
