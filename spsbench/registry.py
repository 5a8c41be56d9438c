"""The registry: one line per command and plug-in with its name, place and summary.

Only strings: nothing is imported until `Entry.load` is called. Other people's packages join through
entry points of the group `spsbench.<kind>` (for instance `spsbench.verifiers`).
"""

import importlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["drafters", "verifiers", "schedules", "engines", "decoders", "tasks", "reporters"]
KINDS: tuple[Kind, ...] = get_args(Kind)

BASES: Mapping[Kind, str] = {
    "drafters": ".loop.types:Drafter",
    "verifiers": ".loop.types:Verifier",
    "schedules": ".loop.types:Schedule",
    "engines": ".loop.types:Engine",
    "decoders": ".loop.decoder:Decoder",
    "tasks": ".settings.task:Task",
}
"""Base class of each kind, which plug-ins subclass; a reporter is a function."""


class Entry(NamedTuple):
    """One plug-in."""

    kind: Kind
    name: str
    path: str  # "module:attribute"; ours begin with a dot, for this package
    summary: str
    guarantee: str = ""  # a verifier's: exact, greedy-exact or lossy; a schedule's: exact with an
    # exact rule, since no slot is left out by the token drawn for it
    loads: bool = True  # a decoder's: False = another engine has the models
    needs: str = ""  # a drafter's
    allows: str = ""  # the shapes of a drafter's drafts, and the exact rules that may follow

    @property
    def where(self) -> str:
        """Return the plug-in's full `module:attribute`, with our package's name before a dot."""
        return f"{__package__}{self.path}" if self.path.startswith(".") else self.path

    def load(self) -> Any:
        """Import and return the plug-in."""
        return attribute_at(self.path)


def attribute_at(path: str) -> Any:
    """Import and return the attribute of `module:attribute`; a first dot is for our package."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module, __package__), attribute)


EXTENSIONS = ".extensions."
WORDS = {
    "chain": "chain: sps, block, match",
    "tree": "tree: recursive, traversal, match",
    "rule": "deterministic: match",
    "last": "a head trained for the target: last hidden state",
    "several": "a head trained for the target: several hidden states",
}
"""Words of the table that stand in braces."""

TABLE = Path(__file__).with_name("registry.txt").read_text("utf-8")
"""Name, place and summary by kind, in rows of columns.

Of a drafter also what it needs and the exact rules that may follow, of a verifier its guarantee; a
decoder is `external` whose engine has the models.
"""


def _rows() -> Iterator[tuple[Any, list[str]]]:
    """Yield (kind, columns) of each row of the table, in order; a kind is "commands", too."""
    kind = ""
    for line in TABLE.splitlines():
        if line.startswith(" "):
            yield kind, [column.strip() for column in line.split("|")]
        else:
            kind = line.removesuffix(":")


def _built_in() -> Iterator[Entry]:
    """Yield the entry of each plug-in of the built-in table, in its order, installed or not."""
    for kind, (name, path, summary, *more) in _rows():
        if kind == "commands":
            continue
        entry = Entry(kind, name, path, summary)
        if kind == "drafters":
            needs, allows = (column.format_map(WORDS) for column in more)
            entry = entry._replace(needs=needs, allows=allows)
        elif kind in ("verifiers", "schedules"):
            entry = entry._replace(guarantee="".join(more) or "exact")
        yield entry._replace(loads=more != ["external"])


COMMANDS: Mapping[str, tuple[str, str]] = {
    name: (path, summary) for kind, (name, path, summary, *_) in _rows() if kind == "commands"
}
"""Commands of `sps`: where each is, and the first line of its help."""
BUILT_IN = tuple(_built_in())

DOCTOR: Mapping[str, str] = {"sandbox": ".extensions.sandbox.choice:examine_levels"}
"""What extensions add to `sps doctor`: key in its JSON, and a function without arguments.

The function returns the value under the key, and the rows of the table as pairs of name and text.
"""

SERVED = ".extensions.vllm.rules:serving"
"""Maps a drafter's spec, K and the target to vLLM's options by flags, and its command."""
TRIAL = ".extensions.training.command:trial"  # for `sps plan --trial`
EXPECT = ".extensions.conformance.expect:deliver"  # for `sps check --expect`
VECTORS = ".extensions.conformance.vectors:write_vectors"  # for `sps verify rules --vectors`


def commands() -> Iterator[tuple[str, str]]:
    """Yield the name and summary of each of our commands that is installed."""
    for name, (path, summary) in COMMANDS.items():
        if is_installed(path):
            yield name, summary


def is_installed(path: str) -> bool:
    """Return whether the extension of `.module:attribute` is there; True outside extensions."""
    if not path.startswith(EXTENSIONS):
        return True
    room = path.partition(":")[0].rpartition(".")[0]
    try:
        return find_spec(room, __package__) is not None
    except ModuleNotFoundError:  # without any extension
        return False


def built_in(kind: Kind) -> str:
    """Return the names of our own installed plug-ins of a kind, for messages: `xsum, humaneval`."""
    return ", ".join(e.name for e in BUILT_IN if e.kind == kind and is_installed(e.path))


def entries(kind: Kind) -> Iterator[Entry]:
    """Yield the installed plug-ins of one kind: ours first, whose names others cannot take."""
    ours = [entry for entry in BUILT_IN if entry.kind == kind]
    yield from (entry for entry in ours if is_installed(entry.path))
    from importlib.metadata import entry_points  # as long to import as all of this package's help

    taken = {entry.name for entry in ours}
    for point in entry_points(group=f"spsbench.{kind}"):
        if point.name not in taken:
            package = point.dist.name if point.dist else "an installed package"
            yield Entry(kind, point.name, point.value, f"from {package}")


def find(kind: Kind, name: str) -> Entry:
    """Return the installed plug-in called `name`.

    Raises KeyError, with a list of those there are, if none has the name or its extension is
    absent.
    """
    for entry in entries(kind):  # ours come first, and for them no package is searched
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in entries(kind))
    word = kind.removesuffix("s")
    absent = [entry.path for entry in BUILT_IN if entry.kind == kind and entry.name == name]
    if absent:
        room = absent[0].removeprefix(EXTENSIONS).partition(".")[0]
        raise KeyError(
            f"{word} {name!r} is of the extension {room!r}, which is not installed: expected one "
            f"of {names}"
        )
    raise KeyError(f"no {word} {name!r}: expected one of {names}")
