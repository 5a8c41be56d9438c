"""Export of drafters to the files that other engines take; `heads.export` has their forms."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from spsbench.checkpoints.config import read_config
from spsbench.errors import DataError, MissingError, UsageError, WriteError
from spsbench.heads.export import converter
from spsbench.heads.families import family_of
from spsbench.heads.files import open_files
from spsbench.heads.head import read_head
from spsbench.models.folder import is_hub_id, local_folder, locate
from spsbench.registry import SERVED, attribute_at, entries, is_installed
from spsbench.settings.execution import Access
from spsbench.settings.models import BUNDLED, FETCHED, ModelSpec
from spsbench.store.atomic import replace_file

log = logging.getLogger(__name__)

ENGINES = ("vllm", "sglang", "hf")
OF_A_MODEL = ("*.json", "*.safetensors", "tokenizer.model", "*.txt", "*.jinja")
FALLBACK_K = 3  # tokens of a draft in the shown command


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder that an engine loads, and the way to name it there."""

    folder: Path
    drafter: str
    engine: str
    speculative_config: Mapping[str, Any] | None  # what vLLM takes
    tried: bool  # whether that engine has loaded such files
    command: str = ""  # serves a target with a drafter by rule

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "folder": str(self.folder)}


def export_drafter(
    draft: str, engine: str, out: Path, *, verifier: str | None = None, access: Access | None = None
) -> Exported:
    """Write the drafter `draft` into the new folder `out`, as `engine`, one of `ENGINES`, takes it.

    `draft` is a bundled name, folder or hub id (fetched by `access`) of a head or a draft model,
    or, for vLLM alone, a drafter by rule. `verifier` is the folder, hub id or absolute path of the
    target, which a head then names, and the command of a drafter by rule. The result has vLLM's
    options for at most `FALLBACK_K` tokens. A note is logged where a draft model names no target,
    or a head one that vLLM cannot load.

    UsageError: another engine, a folder that is not empty, or a drafter it cannot serve.
    MissingError: a verifier that is neither a folder nor a hub id. DataError: a head that the
    engine cannot take, that is for another target, or that needs its target, which is not here.
    SpsError: a drafter that cannot be read, or a folder that cannot be written.
    """
    if engine not in ENGINES:
        raise UsageError(f"`for` {engine}: expected one of {', '.join(ENGINES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already (`out`): expected a new or an empty folder")
    is_named = draft.partition(":")[0] in {entry.name for entry in entries("drafters")}
    if is_named and not os.path.isdir(draft):
        if engine != "vllm" or not is_installed(SERVED):
            raise UsageError(f"{draft} for {engine}: expected the folder of a head or draft model")
        return _export_rule(draft, out, verifier)
    access = access or Access()
    folder = locate(ModelSpec(draft), access)
    if (family := family_of(folder)) is None:
        if verifier is not None:
            log.info("note: a draft model names no target: `verifier` is written nowhere")
        return _copy_model(folder, draft, engine, out)
    convert = converter(engine, family, folder)
    stated = open_files(folder).target
    named = verifier_folder(verifier) if verifier is not None else None
    target_folder = named
    with suppress(MissingError):  # its target is not here
        target_folder = named or (None if stated is None else local_folder(stated))
    target = read_config(target_folder) if target_folder is not None else {}
    try:
        head = read_head(
            folder,
            target,
            names=(verifier or stated or "", draft),
            drafter=family,
            overrides={"anyway": True},  # the same target may have another name there; sizes decide
            allow_pickle=access.allow_pickle,
        )
    except UsageError as error:
        if target_folder is not None:
            raise
        raise DataError(
            f"{draft} leaves open what its target's config says ({folder}): expected the folder "
            f"of its target{f', {stated!r}' if stated else ''}. Name it with `verifier`"
        ) from error
    name = os.path.abspath(named) if named is not None else verifier
    config, tensors = convert(head, name, target)
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    write_head(out, config, tensors, dtype)
    if engine == "vllm" and name is None and stated in (*BUNDLED, *FETCHED, None):
        log.info(
            f"note: the head names its target {stated}, which vLLM cannot load: name the target "
            "to vLLM, or export with `verifier`"
        )
    chosen = None
    if engine == "vllm":
        k = min(FALLBACK_K, getattr(head.shape, "count", FALLBACK_K))
        chosen = {"method": family, "model": str(out), "num_speculative_tokens": k}
    return Exported(out, family, engine, chosen, tried=engine == "vllm")


def _export_rule(draft: str, out: Path, verifier: str | None) -> Exported:
    """Write vLLM's options to draft by the spec `draft` into `out`, made if need be, as FLAG.json.

    The result has the command that serves `verifier`, or "TARGET" without one. UsageError: vLLM
    cannot draft by it. Errors of `verifier_folder` and WriteError pass.
    """
    target = str((verifier and verifier_folder(verifier)) or verifier or "TARGET")
    options, command = attribute_at(SERVED)(draft, FALLBACK_K, target)
    _make_folder(out)
    for flag, value in options.items():
        replace_file(out / f"{flag}.json", (json.dumps(value) + "\n").encode())
    return Exported(out, draft, "vllm", options["speculative-config"], True, command)


def verifier_folder(verifier: str) -> Path | None:
    """Return the folder of a target that a head is to name; None: a hub id, or a path not here.

    An absolute path that is not here is logged. MissingError: neither a folder, a hub id nor such a
    path. DataError: a drafting head.
    """
    if (folder := local_folder(verifier)) is None:
        absolute = verifier.startswith("/") and verifier.isprintable()
        if not absolute and not is_hub_id(verifier):
            raise MissingError(
                f"no model {verifier[:100]!r} (`verifier`): expected the folder or the hub id of "
                "the target, or an absolute path on the machine of the server. Correct it"
            )
        if absolute:
            log.info(f"note: no folder {verifier} here: its sizes are not checked")
    elif (family := family_of(folder)) is not None:
        raise DataError(
            f"{verifier} is a head, {family} (`verifier`): expected its target. Name the model "
            "that the head was trained for"
        )
    return folder


def _copy_model(folder: Path, draft: str, engine: str, out: Path) -> Exported:
    """Copy a draft's files `OF_A_MODEL` but `training.json` over any in `out`; return the result.

    For vLLM it has options for `FALLBACK_K` tokens. `draft` names the model in an error. DataError:
    `folder` has no top-level `vocab_size` or no safetensors. WriteError: `out` cannot be written.
    """
    config = read_config(folder)
    if not isinstance(config.get("vocab_size"), int):
        raise DataError(f"neither a head nor a language model ({folder}): expected one of the two")
    names = sorted({path for pattern in OF_A_MODEL for path in folder.glob(pattern)})
    if not any(path.suffix == ".safetensors" for path in names):
        raise DataError(f"no *.safetensors ({folder}): expected the weights of {draft} in them")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in names:
            if path.name != "training.json":
                shutil.copyfile(path, out / path.name)
    except OSError as error:
        raise WriteError.of(error, out) from error
    chosen: dict[str, Any] | None = None
    if engine == "vllm":
        chosen = {"method": "draft_model", "model": str(out), "num_speculative_tokens": FALLBACK_K}
        chosen["draft_sample_method"] = "probabilistic"  # its default drafts greedily
    return Exported(out, "model", engine, chosen, tried=engine == "vllm")


def write_head(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """Write the folder of a head: safetensors, then config.json, which in a new folder means whole.

    Floating-point tensors are stored as `dtype`, which becomes `torch_dtype` in the config. The
    folder is made if need be, and its files are replaced. WriteError: it cannot be written.
    """
    whole = {
        name: tensor.detach().cpu().to(dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    _make_folder(folder)
    replace_file(folder / "model.safetensors", save(whole, {"format": "pt"}))
    named = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    replace_file(folder / "config.json", (json.dumps(named, indent=1) + "\n").encode())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
