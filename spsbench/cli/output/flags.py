"""Flags in messages: rooms name a field in backticks, the command line shows its flag."""

from collections.abc import Mapping
from functools import cache
from keyword import iskeyword
from typing import Any

from spsbench.errors import replace_fields

_OF_COMMAND: dict[str, str] = {}
"""Field -> flag of the command that runs."""


def learn_flags(command: Any) -> None:
    """Take the flags of a command and of those in it, as the command line declares them."""
    for parameter in command.params:
        flags = [name for name in parameter.opts if name.startswith("--")]
        if flags:
            # `--from` is an alias of `start`, as a field cannot be called so
            keywords = [name for name in flags if iskeyword(name[2:])]
            _OF_COMMAND[parameter.name] = (keywords or flags)[0]
    for inner in getattr(command, "commands", {}).values():
        learn_flags(inner)


def with_flags(text: str, flags: Mapping[str, str] | None = None) -> str:
    """Return a message with the flags of the fields that it names, by `flags` before others."""
    return replace_fields(text, lambda field: (flags or {}).get(field) or _flag(field))


def _flag(field: str) -> str | None:
    """Return the flag of a field: the running command's, or another command's."""
    return _OF_COMMAND.get(field) or _of_any_command().get(field)


@cache
def _of_any_command() -> dict[str, str]:
    from spsbench.settings.commands import OF_AUDIT, OF_PLANNING, OF_REPLAY
    from spsbench.settings.execution import OF_ACCESS, OF_OUTPUT, OF_WORKERS
    from spsbench.settings.experiment import OF_EXPERIMENT
    from spsbench.settings.sweep import LISTED, OF_SWEEP

    cells = (LISTED, OF_SWEEP, OF_EXPERIMENT)
    runs = (OF_ACCESS, OF_OUTPUT, OF_WORKERS)
    audits = (OF_PLANNING, OF_AUDIT, OF_REPLAY)
    return {
        name: setting.flag
        for settings in (*cells, *runs, *audits)
        for name, setting in settings.items()
    }
