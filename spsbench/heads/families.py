"""Every family of heads that is known, by its files; imports no torch.

To add one: a row of `families.toml`, a module of this folder with `shape` and `network`, and a row
of heads in `registry.txt`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.checkpoints.config import expand_path, names_head, read_config
from spsbench.errors import DataError, SpsError, UsageError
from spsbench.heads.files import Files, check_kind, open_files
from spsbench.settings.cell_from_options import inner_drafters
from spsbench.spec import Spec
from spsbench.tables import read_table

STRANGE = ("speculator", "eagle", "medusa", "dflash", "dspark", "mtpdraft")  # in a kind's name
STATES = "features"  # the flag that lists hidden states of the target, as in 2-16-29
TABLE = read_table(__file__, "families.toml")
VALUES: Mapping[str, tuple[str, ...]] = {n: (*v.split(),) for n, v in TABLE["values"].items()}
"""Flag -> its values, the same in each family that has it; none: it lists hidden states."""

FLAGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    family: {flag: VALUES[flag] for flag in flags.split()}
    for family, flags in TABLE["flags"].items()
}
"""Family -> its flags, and the values of each."""

OVERRIDES = frozenset({"anyway", *VALUES})
"""Arguments of drafters that are flags of a head, or excuse another target."""

Renames = tuple[tuple[str, str], ...]
"""Beginnings of tensors' names (regular expressions) -> those of parameters; nothing: not read."""

PROJECTION = re.compile(
    r"((?:model\.(?:language_model\.|mtp\.)?|mtp\.)layers\.)(\d++)\.eh_proj\.weight$"
)
SUM = re.compile(r"(?:model\.)?mtp\.(?:\d++\.[eh]_proj|fc_(?:embedding|hidden))\.")


def renames_of(rows: Sequence[Sequence[str]], front: str = "") -> Renames:
    """Return (front + pattern, parameter) of each row; for `@NAME` those of the rows NAME."""
    renames: list[tuple[str, str]] = []
    for pattern, parameter in rows:
        if parameter.startswith("@"):
            renames += renames_of(TABLE["renames"][parameter[1:]], front + pattern)
        else:
            renames.append((front + pattern, parameter))
    return tuple(renames)


CUT_OUT, OF_LAYER = (renames_of([("", f"@{name}")]) for name in ("cut_out", "prediction_layer"))


def rename_tensor(name: str, renames: Renames) -> str:
    """Return a name by the first rename that fits its beginning; unchanged: none fits."""
    for pattern, beginning in renames:
        if match := re.match(pattern, name):
            return match.expand(beginning) + name[match.end() :]
    return name


class Family(NamedTuple):
    """A family of heads, as some writers write it; `families.toml` says what its fields mean."""

    name: str
    writer: str
    module: str
    renames: Renames
    marks: tuple[str, ...] = ()
    kind: str = ""
    inside: bool = False

    def parameter(self, name: str, layers: Sequence[str] = ()) -> str:
        """Return the parameter of the tensor `name`, without a rename `name` itself; "": not read.

        `layers` are the beginnings that `prediction_layers` returns. With several, a parameter of
        the layer of depth d begins with `stages.d.`. `inside` a model, its other tensors are "".
        """
        for depth, front in enumerate(layers if self.inside else ()):
            if name.startswith(front):
                stage = f"stages.{depth}." if len(layers) > 1 else ""
                return stage + rename_tensor(name.removeprefix(front), OF_LAYER)
        parameter = rename_tensor(name, self.renames)
        unread = self.inside and parameter == name and not re.match(r"(model\.)?mtp", name)
        return "" if unread else parameter

    def knows(self, files: Files) -> bool:
        """Return whether `files` are of this family; a type of speculators decides alone if stated.

        Else the model type does, or prediction layers in a model (if `inside`), or tensors of all
        `marks`.
        """
        if (kind := files.config.get("speculators_model_type")) is not None:
            return kind == self.name and not self.inside
        if self.kind and files.config.get("model_type") == self.kind:
            return True
        if self.inside and prediction_layers(files):
            return True
        # marks are of first layers and heads: of a model's thousands of names few are looked at
        firsts = [name for name in files.headers if not re.search(r"(?:^|\.)[1-9]", name)]
        return bool(self.marks) and set(map(self.parameter, firsts)).issuperset(self.marks)


def prediction_layers(files: Files) -> list[str]:
    """Return beginnings of names of layers with a projection of their own, by depth.

    Such as `model.layers.61.`: their numbers go on after the target's layers, or begin at 0 under a
    name of their own.
    """
    fronts = [match for name in files.headers if (match := PROJECTION.match(name))]
    return [f"{match[1]}{match[2]}." for match in sorted(fronts, key=lambda match: int(match[2]))]


FAMILIES = tuple(
    Family(**{"module": row["name"], **row, "renames": renames_of(row["renames"])})
    for row in TABLE["families"]
)

HEADS = frozenset(family.name for family in FAMILIES)
"""Drafters that read a head in a known format."""


def head_part(drafter: Spec) -> Spec | None:
    """Return the drafter that reads a head in a known format, itself or as a hybrid's part."""
    return next((part for part in inner_drafters(drafter) if part.name in HEADS), None)


def family_in(files: Files) -> Family | None:
    """Return the first family that knows the files."""
    return next((family for family in FAMILIES if family.knows(files)), None)


def family_of(folder: Path) -> str | None:
    """Return the drafter of the head in `folder`; None if it is no head, or inside a model.

    A language model with a head inside may be meant as a draft model: its drafter must be named.
    Raises SpsError where the config names a head that cannot be read, DataError for a head of an
    unknown family.
    """
    try:
        files = open_files(folder)
    except SpsError:
        try:
            claims = names_head(read_config(folder))
        except SpsError:
            claims = False
        if claims:
            raise
        return None
    family = family_in(files)
    if family is None and (kind := unknown_kind(files)):
        raise no_such(folder, kind)
    return None if family is None or family.inside else family.name


def recognise_head(
    folder: Path,
    *,
    names: tuple[str, str],
    drafter: str,
    overrides: Mapping[str, Any],
    allow_pickle: bool,
) -> tuple[Files, Family]:
    """Return files and family of the head in `folder`; torch is imported for pickled weights only.

    `names` are target and head, as the user gave them; `drafter` is to read the head; its
    arguments, `overrides`, resolve what the file leaves open. UsageError: a head of another
    drafter. DataError: no head that is known, one with two added projections or an unknown model
    type, a pickle without `allow_pickle`, or another target's name in the file; the last not for a
    target in a folder, nor with the override `anyway`.
    """
    files = open_files(folder, overrides)
    family = family_in(files)
    if family is None and (name := next(filter(SUM.match, files.headers), None)):
        raise DataError(
            f"{name} is one of two projections that are added ({folder}): expected one projection "
            "of both embedding and feature. Draft with `drafter` ngram, or another head of this "
            "target"
        )
    if family is None:
        raise no_such(folder, unknown_kind(files))
    if family.name != drafter:
        raise UsageError(
            f"`draft` {names[1]} with `drafter` {drafter}: that is a head of {family.name}. "
            "Leave `drafter` out"
        )
    if files.paths[0].suffix != ".safetensors" and not allow_pickle:
        raise DataError(
            f"only pickled weights such as {files.paths[0].name} ({folder}): expected safetensors, "
            "as a pickle can run code. Convert the head, or trust its author with `allow_pickle`"
        )
    check_kind(files.config, files.where)
    stated = files.target
    if stated is not None and not overrides.get("anyway") and not expand_path(names[0]).exists():
        one, two = (name.rstrip("/").rpartition("/")[2].lower() for name in (stated, names[0]))
        if not one.startswith(two) and not two.startswith(one):  # Qwen3-8B is Qwen3-8B-FP8's, too
            raise DataError(
                f"{names[1]} is a head for {stated}, not for {names[0]} ({folder}): expected the "
                f"same model. Choose the head of this target, or say `drafter` "
                f"{drafter}:anyway=true"
            )
    return files, family


def unknown_kind(files: Files) -> str:
    """Return ` of kind X`, X by the config, for an unknown head; "" if nothing says it is one."""
    config = files.config
    stated = config.get("speculators_model_type") or config.get("model_type")
    words = f"{stated} {files.kind}".lower()
    named = names_head(config)
    return f" of kind {stated or files.kind}" if named or any(w in words for w in STRANGE) else ""


def no_such(folder: Path, kind: str = "") -> DataError:
    """Make the error for a head of an unknown family."""
    return DataError(
        f"no head that is known, but one{kind or ' of no kind'} ({folder}): expected the "
        f"config.json and the tensors of one of {', '.join(sorted(HEADS))}. Their formats are in "
        "docs/reference/heads.md"
    )
