"""The table of forms of logs, which is `forms.toml`: where requests and answers are."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import SimpleNamespace
from typing import NamedTuple


class Form(NamedTuple):
    """A form of a line; `forms.toml` says what its paths mean."""

    name: str
    marks: tuple[str, ...]
    request: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


TABLE = tomllib.loads((files(__package__) / "forms.toml").read_text(encoding="utf-8"))
FORMS = tuple(
    Form(row.pop("name"), **{field: tuple(paths.split()) for field, paths in row.items()})
    for row in TABLE["forms"]
)
CONTAINERS: Mapping[str, list[str]] = {
    path: broken.split() for path, broken in TABLE["containers"].items()
}
ROLES: Mapping[str, str] = {
    word: role for role, words in TABLE["roles"].items() for word in words.split()
}
names = SimpleNamespace(
    **{meaning: tuple(words.split()) for meaning, words in TABLE["names"].items()}
)
