"""Options of a plan, where only one of each is meant."""

from collections.abc import Mapping
from typing import Any

from spsbench.errors import UsageError


def single(asked: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """Lists of one as that one.

    Args:
        flag: what was asked for, which compares nothing.

    Raises:
        UsageError: several, or none.
    """
    return {name: _once(name, value, flag) for name, value in asked.items()}


def _once(name: str, value: Any, flag: str) -> Any:
    if not isinstance(value, list) or name == "stop":
        return value
    if len(value) != 1:
        option = "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} {len(value)} times with {flag}: expected one. Ask for each by itself"
        )
    return value[0]
