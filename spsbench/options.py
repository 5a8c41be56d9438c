"""What a user asks of a benchmark: flags, and the tables of an experiment file in TOML."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spsbench.errors import MissingError, UsageError

METHODS = ("ars", "sps")
RECORDED = ("counts", "laws")  # of each round; laws are for audits


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One table of an experiment file, or the flags of `sps bench`; lists multiply to cells."""

    task: str = ""
    data: str | None = None
    k: str = "4"
    method: tuple[str, ...] = METHODS
    setting: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    target: tuple[str, ...] = ("nano",)
    draft: tuple[str, ...] = ()
    drafter: tuple[str, ...] = ()
    verifier: tuple[str, ...] = ()
    schedule: tuple[str, ...] = ()
    engine: tuple[str, ...] = ("fast",)
    decoder: tuple[str, ...] = ("native",)
    record: str = "counts"
    max_new_tokens: int | None = None
    ignore_end: bool = False  # past end tokens and stop strings: timing only
    samples: int = 1
    repeats: int = 1
    limit: int | None = None
    device: str = "cpu"
    dtype: str = "auto"
    revision: str | None = None
    draft_revision: str | None = None
    random_weights: bool = False


def read_tables(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The top level of an experiment file, and its `[[part]]` tables.

    Raises:
        MissingError: no such file. UsageError: not TOML.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingError(f"no file {path}: expected an experiment in TOML") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}. Expected an experiment in TOML") from error
    parts = tables.pop("part", [{}])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UsageError(f"{path}: part is no list of tables: expected [[part]]")
    return tables, parts


def options(values: Mapping[str, Any], where: str) -> Options:
    """Options from keys and values; one value stands for a list of one.

    Raises:
        UsageError: an unknown key, or a value of the wrong type.
    """
    known = {f.name: f for f in fields(Options)}
    typed: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise UsageError(f"{where}: unknown key {key!r}: expected one of {', '.join(known)}")
        typed[name] = _fitted(value, _written(known[name].type), f"{where}: {key}")
    return Options(**typed)


def _written(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _fitted(value: Any, wanted: str, where: str) -> Any:
    if wanted.startswith("tuple"):
        listed = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(item, str) for item in listed):
            raise UsageError(f"{where} is {value!r}: expected text or a list of texts")
        return tuple(listed)
    if wanted.startswith("str") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # k = 4
    if wanted.startswith("float") and type(value) is int:
        return float(value)
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    kind = kinds[wanted.split(" ")[0]]
    if type(value) is not kind and value is not None:
        raise UsageError(f"{where} is {value!r}: expected {kind.__name__}")
    return value
