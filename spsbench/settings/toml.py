"""Experiment files in TOML: what stands at the top, and a table a part."""

import tomllib
from pathlib import Path
from typing import Any

from spsbench.errors import MissingError, UsageError
from spsbench.hardware.files import read_file

LIMIT = 1 << 20  # bytes


def read_tables(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The top level of an experiment file, and its `[[part]]` tables.

    Raises:
        MissingError: no such file. UsageError: not TOML.
    """
    try:
        tables = tomllib.loads(read_file(path, LIMIT).decode())
    except FileNotFoundError as error:
        raise MissingError(f"no file {path}: expected an experiment in TOML") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply. Expected an experiment in TOML") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}. Expected an experiment in TOML") from error
    parts = tables.pop("part", [{}])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UsageError(f"{path}: part is no list of tables: expected [[part]]")
    return tables, parts
