"""Matrices of servers: rows of set-ups that `conformance` audits one after another.

A file in TOML: `[engine]` with the engine's name and version, `[defaults]`, and `[[row]]` tables.
A row names a server by `url`, or starts one by `serve`, a command line in which `{port}` stands for
a free port. All other keys are options of a check, or words for the table.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.extensions.check.options import OF_CHECK, CheckOptions
from spsbench.foreign import read_toml
from spsbench.settings.options import take_record

MOST_ROWS = 1000
LONGEST = 2000  # characters of a value
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PORT = "{port}"
START = 900.0  # seconds in which a server must answer
WORDS = ("method", "model", "dtype", "mode", "twin", "upstream", "skip", "evidence")
OWN = frozenset(
    (
        "name",
        "k",
        "speculates",
        "served",
        "start",
        "environment",
        "baseline_serve",
        "url",
        "serve",
        *WORDS,
    )
)
OF_RUN = ("keep", "resume", "baseline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One set-up: its server, its check, and what the table says of it."""

    name: str
    options: CheckOptions
    stated: Mapping[str, Any]  # options as the file has them, for the command
    url: str | None = None
    serve: tuple[str, ...] = ()
    baseline: str | None = None
    baseline_serve: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start: float = START
    speculates: bool | None = None  # None: not said
    k: int | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    def word(self, name: str) -> str:
        """Return what the file says, for a cell of the table."""
        return self.words.get(name, "")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of one engine."""

    name: str
    version: str | None
    rows: tuple[Row, ...]


def read_matrix(path: Path, options: Mapping[str, Any]) -> Matrix:
    """Read a matrix; `options` of the command line stand in for those that no row sets.

    Raises:
        SpsError: as `read_toml`.
        UsageError: an unknown key, or a value that cannot be used; names the row.
    """
    tables = read_toml(path, "a matrix of servers in TOML")
    if unknown := sorted(tables.keys() - {"engine", "defaults", "row"}):
        raise UsageError(f"{path}: unknown {unknown[0]}: expected engine, defaults and row")
    engine, defaults = (
        _table(tables.get(key, {}), f"{path}: {key}") for key in ("engine", "defaults")
    )
    listed = tables.get("row")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_ROWS:
        raise UsageError(f"{path}: expected 1 to {MOST_ROWS} tables [[row]]")
    if unknown := sorted(engine.keys() - {"name", "version"}):
        raise UsageError(f"{path}: unknown engine.{unknown[0]}: expected name and version")
    rows: list[Row] = []
    for number, table in enumerate(listed, 1):
        where = f"{path}: row {number}"
        try:
            rows.append(_row({**options, **defaults, **_table(table, where)}, where))
        except UsageError as error:
            line = str(error)
            raise UsageError(line if line.startswith(where) else f"{where}: {line}") from error
    names = [row.name for row in rows]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path}: two rows {twice[0]}: expected a name once")
    for row in rows:
        if row.word("twin") and row.word("twin") not in (*names, "none"):
            raise UsageError(
                f"{path}: row {row.name}: twin {row.word('twin')}: expected the name of another "
                "row, or none"
            )
    version = engine.get("version")
    return Matrix(
        _text(engine.get("name", path.stem), f"{path}: engine.name"),
        None if version is None else _text(version, f"{path}: engine.version"),
        tuple(rows),
    )


def _row(values: dict[str, Any], where: str) -> Row:
    name = values.pop("name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"{where}: name: expected letters, digits, points and dashes, up to 64")
    words = {key: _text(values[key], f"{where}: {key}") for key in WORDS if key in values}
    urls = {key: _text(values[key], key) for key in ("url", "baseline") if key in values}
    commands = {
        key: _command(values[key], f"{where}: {key}")
        for key in ("serve", "baseline_serve")
        if key in values
    }
    if "skip" not in words and ("url" in urls) == ("serve" in commands):
        raise UsageError(
            f"{where}: expected `url`, or `serve` with {PORT}, or `skip` with a reason"
        )
    if "baseline" in urls and "baseline_serve" in commands:
        raise UsageError(f"{where}: baseline and baseline_serve: expected one of the two")
    environment = _table(values.get("environment", {}), f"{where}: environment")
    start, k, speculates = values.get("start", START), values.get("k"), values.get("speculates")
    if isinstance(start, bool) or not isinstance(start, int | float) or not 0 < start < 1e5:
        raise UsageError(f"{where}: start: expected seconds above 0")
    if k is not None and (type(k) is not int or k < 0):
        raise UsageError(f"{where}: k: expected a number from 0")
    if speculates is not None and not isinstance(speculates, bool):
        raise UsageError(f"{where}: speculates: expected true or false")
    chosen = {key: value for key, value in values.items() if key not in OWN and key != "baseline"}
    if barred := [key for key in chosen if key in OF_RUN]:
        raise UsageError(f"{where}: {barred[0]}: expected it on the command line alone")
    if "served" in values:  # `model` is a word of the table
        chosen["model"] = _text(values["served"], f"{where}: served")
    if "temperature" in chosen:
        listed = chosen["temperature"]
        chosen["temperature"] = [str(t) for t in (listed if isinstance(listed, list) else [listed])]
    stated = dict(chosen)
    unknown = sorted(chosen.keys() - OF_CHECK.keys())
    if unknown:
        raise UsageError(f"{where}: unknown {unknown[0][:80]}: expected an option of a check")
    return Row(
        name=name,
        options=take_record(CheckOptions, chosen),
        stated=stated,
        environment={
            key: _text(value, f"{where}: environment.{key}") for key, value in environment.items()
        },
        start=float(start),
        k=k,
        speculates=speculates,
        words=words,
        url=urls.get("url"),
        baseline=urls.get("baseline"),
        serve=commands.get("serve", ()),
        baseline_serve=commands.get("baseline_serve", ()),
    )


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a table")
    return dict(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST:
        raise UsageError(f"{where}: expected a text of 1 to {LONGEST} characters")
    return value


def _command(value: Any, where: str) -> tuple[str, ...]:
    """Return the words of a command line, or of a list; one of them holds the port."""
    try:
        words = shlex.split(_text(value, where)) if isinstance(value, str) else value
    except ValueError as error:
        raise UsageError(f"{where}: {error}. Expected a command line") from error
    if not isinstance(words, Sequence) or not words or not all(isinstance(w, str) for w in words):
        raise UsageError(f"{where}: expected a command line, or a list of its words")
    if not any(PORT in word for word in words):
        raise UsageError(f"{where}: expected {PORT} in it, which a free port replaces")
    return tuple(words)
