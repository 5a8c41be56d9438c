"""The folder of a training: its files, its checkpoints, and the check of whether it can be resumed.

DIR/train.json      settings, and digests of the target's files
DIR/texts.jsonl     the target's texts
DIR/checkpoints/    the newest two
DIR/costs.json      costs of a round, measured before the first step
DIR/log.jsonl       a line for each evaluation
DIR/curve.png       the log as a figure
DIR/page.html       the log as a page
DIR/result/         the drafter for `draft`, and its model card
"""

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from spsbench.checkpoints.config import read_object
from spsbench.errors import DataError, MismatchError, SpsError, WriteError
from spsbench.extensions.training.options import DraftTraining, HeadTraining
from spsbench.settings.execution import OutputFolder
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.manifest import differences
from spsbench.store.provenance import digest
from spsbench.store.run_folder import cannot_create, move_aside

LARGE = 1 << 20
LOCK = "lock"


class Folder:
    """The files of a training; `new`: the folder was created for this training."""

    def __init__(self, path: Path, new: bool = False) -> None:
        self.path, self.lock, self.new = path, path / LOCK, new
        self.manifest, self.texts = path / "train.json", path / "texts.jsonl"
        self.checkpoints = path / "checkpoints"
        self.costs, self.log, self.curve, self.page = (
            path / name for name in ("costs.json", "log.jsonl", "curve.png", "page.html")
        )
        self.result = path / "result"

    @contextmanager
    def gone_if_refused(self) -> Iterator[None]:
        """Remove a new folder if an `SpsError`, which is passed on, comes before the first text.

        It stays if it has other files than the lock, the manifest and a log without a text.
        """
        try:
            yield
        except SpsError:
            partial = self.texts.with_suffix(".partial")
            begun = partial.exists() and len(partial.read_bytes().splitlines()) > 1
            early_files = {self.lock, self.manifest, partial}
            if self.new and not begun and early_files.issuperset(self.path.iterdir()):
                shutil.rmtree(self.path, ignore_errors=True)
            raise


def open_training(place: OutputFolder) -> Folder:
    """Return the folder that a user names, else `trained`, made if need be, whatever is in it.

    With `overwrite` an older one is renamed first; InUseError: a training is at work there.
    SpsError: the folder cannot be made or renamed.
    """
    path = Path(place.out or "trained")
    if path.exists() and place.overwrite:
        if path.is_dir():
            Lock(path / LOCK).close()
        move_aside(path)
    new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_create(error, path) from error
    return Folder(path, new)


def resumed_manifest(folder: Folder, resume: bool) -> Mapping[str, Any]:
    """Return the manifest of the training to resume; empty if there is none or not `resume`."""
    return read_object(folder.manifest, LARGE) if resume and folder.manifest.is_file() else {}


def begin(folder: Folder, identity: Mapping[str, Any], resume: bool) -> None:
    """Write the manifest of a new training, or check that of one to resume.

    A folder with nothing but lock and manifest is new, with `resume` too. MismatchError: files
    without a manifest, a training without `resume`, or one of another identity.
    """
    path = folder.manifest
    early_names = {folder.lock.name, path.name}
    others = [entry.name for entry in folder.path.iterdir() if entry.name not in early_names]
    if not path.exists() or not others:  # a refused first attempt leaves nothing else
        if others:
            raise MismatchError(
                f"{folder.path} has {others[0]} in it: expected an empty folder. Name another with "
                "`out`"
            )
        replace_file(path, (json.dumps(identity, indent=1) + "\n").encode())
        return
    if not resume:
        raise MismatchError(
            f"a training is there ({folder.path}): expected a new folder. Continue with `resume`, "
            "or start over with `overwrite`"
        )
    if lines := differences(identity, read_object(path, LARGE)):
        raise MismatchError.of(
            f"another training ({folder.path}): expected the settings that it was begun with. Give "
            "this one another folder, or start over with `overwrite`",
            lines,
        )


FREE = ("patience", "worth", "costs", "cost_seconds", "texts", "save_as", "minutes")
"""Fields that may change on resume: none changes the result of a step, except for rounding."""

OF_TEXTS = (
    *("prompts", "count", "together", "tokens", "prompt_tokens"),
    *("temperature", "top_p", "seed"),
)
PRODUCTS = "products"


def identity(
    target: ModelSpec, options: DraftTraining | HeadTraining, files: str, loss: Spec, numbers: str
) -> dict[str, Any]:
    """Return all settings that a step depends on, for the manifest: name -> plain value.

    `files` is the digest of the target's files, `loss` the user's or the default, `numbers` the
    dtype of products. Where `steps` is None, `minutes` is among the settings.
    """
    settings: dict[str, Any] = {"target": str(target), "files": files, "loss": str(loss)}
    settings[PRODUCTS] = numbers
    for field in fields(options):
        if field.name not in (*FREE, "loss"):
            value = getattr(options, field.name)
            settings[field.name] = str(value) if isinstance(value, Path) else value
    settings |= {name: getattr(target, name) for name in ("device", "dtype", "attention")}
    if options.steps is None:
        settings["minutes"] = options.minutes
    for name in ("torch", "transformers"):
        settings[f"version.{name}"] = ".".join(version(name).split(".")[:2])
    return settings


def of_texts(
    target: ModelSpec,
    options: DraftTraining | HeadTraining,
    files: Mapping[str, str],
    vocab: int,
    chat: bool,
    numbers: str,
) -> dict[str, Any]:
    """Return all settings that the texts of a target depend on, the header of their file.

    `files` is name -> digest of the target's files, `vocab` the number of tokens, `chat` whether
    the target's chat template is used, `numbers` the dtype of the target.
    """
    tokenizer_files = {
        name: value for name, value in files.items() if "token" in name or "vocab" in name
    }
    return {
        "target": str(target),
        "files": digest(dict(files)),
        "tokenizer": digest(tokenizer_files),
        "vocab": vocab,
        "chat": chat,
        "numbers": numbers,
        **{name: getattr(options, name) for name in OF_TEXTS},
    }


KEPT = 2


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint into `folder`, created if need be; remove all but the newest `KEPT`.

    WriteError: the folder or the file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    buffer = io.BytesIO()
    torch.save(state, buffer)
    replace_file(folder / f"step-{step:08d}.pt", buffer.getvalue())
    for path in checkpoints_in(folder)[:-KEPT]:
        path.unlink(missing_ok=True)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints, the oldest first; empty where there is no folder."""
    return sorted(folder.glob("step-*.pt"))


def newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read, on the host; None if `folder` has none.

    Newer ones that cannot be read are skipped silently. DataError: none of them can be read.
    """
    files = checkpoints_in(folder)
    for path in reversed(files):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        except Exception:  # any error of an unpickler: an older checkpoint may be whole
            continue
    if files:
        raise DataError(
            f"no checkpoint can be read ({folder}): expected one of {len(files)}. Start over with "
            "`overwrite`"
        )
    return None
