"""THE options of cells: every one that a record declares, by name.

The flags of the commands, the keys of an experiment file and the keywords of the library are read
from here and from the other records of this room, and nowhere else is an option listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from spsbench.settings.method import Method
from spsbench.settings.models import ModelSpec
from spsbench.settings.option import METHOD, MODELS, Option, between
from spsbench.settings.sampling import Sampling
from spsbench.settings.setting import Setting, settings_of

K_MAX = 64


def _of_target() -> Iterator[Setting]:
    for each in settings_of(ModelSpec):
        told = replace(each.option, help=each.option.help.format(model="the target"))
        name, default = ("target", "nano") if each.name == "id" else (each.name, each.default)
        yield replace(each, name=name, option=told, default=default)


def _of_draft() -> Iterator[Setting]:
    """Without defaults: what is not said is as the target's, but for the id and its revision."""
    for each in settings_of(ModelSpec):
        own = each.name in ("id", "revision", "parallel")
        told = replace(
            each.option,
            help=each.option.help.format(model="the draft model"),
            flags=tuple(f"draft-{flag}" for flag in each.option.flags),
            shown="that of a bundled pair"
            if each.name == "id"
            else None
            if own
            else "the target's",
        )
        name = "draft" if each.name == "id" else f"draft_{each.name}"
        yield replace(each, name=name, option=told, default=None)


K = Setting(
    "k",
    Option(
        "Tokens drafted a round, 1..64; 0 is ArS.",
        METHOD,
        between(0, K_MAX, f"1..{K_MAX}, or 0 for auto-regressive sampling"),
        flags=("k",),
        shown="4",
    ),
    int,
)
"""Stands for the schedule that drafts so many each time."""

RANDOM_WEIGHTS = Setting(
    "random_weights",
    Option("Shapes only, of both models: timing, no meaning.", MODELS),
    bool,
    False,
)
"""Stands for random weights of target and draft."""

TARGET = {each.field: each for each in _of_target()}
"""Field of the target's `ModelSpec` -> its setting."""
DRAFT = {each.field: each for each in _of_draft()}

OF_CELL: Mapping[str, Setting] = {
    each.name: each
    for each in (
        *TARGET.values(),
        *DRAFT.values(),
        RANDOM_WEIGHTS,
        K,
        *settings_of(Method),
        *settings_of(Sampling),
    )
}
"""Name -> setting, of all that a user may say of a cell."""
