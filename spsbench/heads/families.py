"""Every family of heads that is known, by its files; imports no torch.

To add one: a row here, a module beside this one with `shape` and `network`, and a row of heads in
`registry.py`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.checkpoints.config import expanded, names_head, read_config
from spsbench.errors import DataError, SpsError, UsageError
from spsbench.heads.files import Files, check_kind, open_files
from spsbench.settings.cell_from_options import parts_of
from spsbench.spec import Spec

STRANGE = ("speculator", "eagle", "medusa", "dflash", "dspark", "mtpdraft")  # in a kind's name
STATES = "features"  # the flag that lists hidden states of the target, as in 2-16-29
_SIDES = ("raw", "normed")
_EAGLE3 = {"residual": _SIDES, "feedback": _SIDES, "output": _SIDES, STATES: ()}
FLAGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "eagle": {"order": ("embedding", "feature"), STATES: ()},
    "eagle3": _EAGLE3,
    "peagle": _EAGLE3,
    "medusa": {STATES: ()},
    "mlp": {"scaled": ("yes", "no"), STATES: ()},
    "blockwise": {STATES: ()},
    "falcon": {"recurrence": ("text", "none"), STATES: ()},
    "dflash": {STATES: ()},
    "dspark": {STATES: ()},
    "mtp": {
        "order": ("embedding", "feature"),
        "feature": _SIDES,
        "feedback": _SIDES,
        "norms": ("one", "zero"),
    },
}
"""Family -> its flags: what files leave open or say wrongly, and an argument of its drafter may
answer; a flag's values, none for hidden states. The loader and the search of wirings read them."""

VALUES = {flag: values for flags in FLAGS.values() for flag, values in flags.items() if values}
"""Flag -> its values, the same in each family that has it; without hidden states."""

OVERRIDES = frozenset({"anyway"}.union(*FLAGS.values()))
"""Arguments of drafters that are flags of a head, or excuse another target."""

Renames = tuple[tuple[str, str], ...]
"""Beginnings of tensors' names (regular expressions) -> those of parameters; nothing: not read."""

LAYERS: Renames = ((r"(?:model\.)?layers\.", "stack."), (r"model\.", ""))
CUT_OUT: Renames = (
    (r"input_proj\.", "fc."),
    (r"token_layernorm\.", "norm_embedded."),
    (r"hidden_layernorm\.", "norm_feature."),
    (r"final_layernorm\.", "norm."),
    (r"", "layer."),
)
QWEN: Renames = (
    (r"mtp\.fc\.", "fc."),
    (r"mtp\.pre_fc_norm_embedding\.", "norm_embedded."),
    (r"mtp\.pre_fc_norm_hidden\.", "norm_feature."),
    (r"mtp\.norm\.", "norm."),
    (r"mtp\.layers\.0\.", "layer."),
)
OF_LAYER: Renames = (
    (r"enorm\.", "norm_embedded."),
    (r"hnorm\.", "norm_feature."),
    (r"eh_proj\.", "fc."),
    (r"(?:shared_head\.norm|final_layernorm)\.", "norm."),
    (r"shared_head\.(?:head|output)\.", "lm_head."),
    (r"embed_tokens\.", "embed_tokens."),
    (r"transformer\.", "layer."),
    *CUT_OUT,
)
ERNIE: Renames = (
    (r"model\.mtp_emb_norm\.0\.", "norm_embedded."),
    (r"model\.mtp_hidden_norm\.0\.", "norm_feature."),
    (r"model\.mtp_linear_proj\.0\.", "fc."),
    (r"model\.mtp_block\.0\.", "layer."),
)
PROJECTION = re.compile(
    r"((?:model\.(?:language_model\.|mtp\.)?|mtp\.)layers\.)(\d++)\.eh_proj\.weight$"
)
SUM = re.compile(r"(?:model\.)?mtp\.(?:\d++\.[eh]_proj|fc_(?:embedding|hidden))\.")


def under(front: str, renames: Renames) -> Renames:
    """Return renames of what stands behind `front`."""
    return tuple((front + pattern, parameter) for pattern, parameter in renames)


def renamed(name: str, renames: Renames) -> str:
    """Return a name by the first rename that fits its beginning."""
    for pattern, beginning in renames:
        if match := re.match(pattern, name):
            return match.expand(beginning) + name[match.end() :]
    return name


class Family(NamedTuple):
    """A family of heads, as some writers write it."""

    name: str  # the drafter that it is for
    writer: str
    module: str  # of its shape and network
    renames: Renames  # the first that fits counts; other names stay
    marks: tuple[str, ...] = ()  # parameters that tell it from others
    kind: str = ""  # a `model_type` that tells it, too
    inside: bool = False  # in a language model's own files, whose other tensors are not read

    def parameter(self, name: str, layers: Sequence[str] = ()) -> str:
        """Return the parameter of a tensor; nothing for one that is not read.

        Args:
            layers: beginnings of the prediction layers' names, as of `prediction_layers`.
        """
        for depth, front in enumerate(layers if self.inside else ()):
            if name.startswith(front):
                stage = f"stages.{depth}." if len(layers) > 1 else ""
                return stage + renamed(name.removeprefix(front), OF_LAYER)
        parameter = renamed(name, self.renames)
        unread = self.inside and parameter == name and not re.match(r"(model\.)?mtp", name)
        return "" if unread else parameter

    def knows(self, files: Files) -> bool:
        """Return whether the files are of this family."""
        kind = files.config.get("speculators_model_type")
        if kind is not None:
            return kind == self.name and not self.inside
        if self.kind and files.config.get("model_type") == self.kind:
            return True
        if self.inside and prediction_layers(files):
            return True
        # marks are of first layers and heads: of a model's thousands of names few are looked at
        firsts = [name for name in files.headers if not re.search(r"(?:^|\.)[1-9]", name)]
        return bool(self.marks) and set(map(self.parameter, firsts)).issuperset(self.marks)


def prediction_layers(files: Files) -> list[str]:
    """Return the beginnings of the names of layers with a projection of their own, by depth.

    Their numbers go on after the target's layers, or begin at 0 under a name of their own.
    """
    fronts = [match for name in files.headers if (match := PROJECTION.match(name))]
    return [f"{match[1]}{match[2]}." for match in sorted(fronts, key=lambda match: int(match[2]))]


ATTENDS = "stack.0.self_attn.q_proj.weight"

FAMILIES = (
    Family("mtp", "speculators", "mtp", under(r"mtp_layers\.0\.", CUT_OUT)),
    Family(
        "mtp",
        "its target's authors",
        "mtp",
        (*QWEN, *under(r"model\.mtp_layers\.0\.", CUT_OUT), *ERNIE),
        marks=("fc.weight",),
        inside=True,
    ),
    Family(
        "dspark",
        "z-lab",
        "dflash",
        # how sure it is: schedules read the probs instead
        ((r"(?:model\.)?confidence_head\.proj\.(?:weight|bias)$", ""), *LAYERS),
        marks=("hidden_norm.weight", ATTENDS, "markov_head.markov_w1.weight"),
    ),
    Family("dflash", "z-lab", "dflash", LAYERS, marks=("hidden_norm.weight", ATTENDS)),
    Family(
        "eagle3",
        "EAGLE",
        "eagle3",
        ((r"(?:model\.)?midlayer\.", "stack.0."), *LAYERS),
        marks=("stack.0.hidden_norm.weight",),
    ),
    Family("peagle", "speculators", "eagle3", LAYERS),
    Family("eagle", "EAGLE", "eagle", LAYERS, marks=("fc.weight", ATTENDS)),
    Family("falcon", "Falcon", "falcon", LAYERS, marks=("lstm.weight_ih_l0", ATTENDS)),
    Family(
        "medusa",
        "Medusa",
        "medusa",
        (
            (r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.", r"heads.\1.blocks.\2."),
            (r"(?:medusa_head\.)?(\d+)\.\d+\.", r"heads.\1.lm_head."),
            (r"blocks\.(\d+)\.layers\.(\d+)\.", r"heads.\1.blocks.\2."),
            (r"lm_heads\.(\d+)\.", r"heads.\1.lm_head."),
        ),
        marks=("heads.0.blocks.0.weight",),
    ),
    Family(
        "mlp",
        "IBM",
        "mlp",
        ((r"speculator\.", ""),),
        marks=("emb.0.weight", "proj.0.weight", "head.0.weight", "ln.0.weight"),
        kind="mlp_speculator",
    ),
    # none was ever published, so this format is our own: `up` and `down` of head i from 0
    Family("blockwise", "spsbench", "blockwise", (), kind="blockwise"),
)

HEADS = frozenset(family.name for family in FAMILIES)
"""Drafters that read a head in a known format."""


def head_part(drafter: Spec) -> Spec | None:
    """Return the drafter that reads a head in a known format, itself or as a hybrid's part."""
    return next((part for part in parts_of(drafter) if part.name in HEADS), None)


def family_in(files: Files) -> Family | None:
    """Return the first family that knows the files."""
    return next((family for family in FAMILIES if family.knows(files)), None)


def family_of(folder: Path) -> str | None:
    """Return the drafter of the head in `folder`; None if it is no head, or inside a model.

    A language model with a head inside may be meant as a draft model: its drafter must be named.
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


def recognised(
    folder: Path,
    *,
    names: tuple[str, str],
    drafter: str,
    overrides: Mapping[str, Any],
    allow_pickle: bool,
) -> tuple[Files, Family]:
    """Recognise the head in `folder`, before torch is imported.

    Args:
        folder: of the head.
        names: of target and head, as the user gave them.
        drafter: that is to read it.
        overrides: arguments of that drafter, which resolve what the file leaves open.
        allow_pickle: whether its weights may be a pickle.
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
    if files.pickled and not allow_pickle:
        raise DataError(
            f"only pickled weights such as {files.paths[0].name} ({folder}): expected safetensors, "
            "as a pickle can run code. Convert the head, or trust its author with `allow_pickle`"
        )
    check_kind(files.config, files.where)
    stated = files.target
    if stated is not None and not overrides.get("anyway") and not expanded(names[0]).exists():
        one, two = (name.rstrip("/").rpartition("/")[2].lower() for name in (stated, names[0]))
        if not one.startswith(two) and not two.startswith(one):  # Qwen3-8B is Qwen3-8B-FP8's, too
            raise DataError(
                f"{names[1]} is a head for {stated}, not for {names[0]} ({folder}): expected the "
                f"same model. Choose the head of this target, or say `drafter` "
                f"{drafter}:anyway=true"
            )
    return files, family


def unknown_kind(files: Files) -> str:
    """Return the kind that an unknown head names in its config; nothing if it is no head."""
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
