"""Tables that modules keep as data, in TOML files of their own folders."""

import tomllib
from pathlib import Path
from typing import Any


def read_table(module: str, name: str) -> dict[str, Any]:
    """Return the values of the file `name` in the folder of a module, whose `__file__` is given."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))
