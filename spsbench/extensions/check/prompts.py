"""Files of prompts: one per line, as text or JSON."""

from pathlib import Path

from spsbench.errors import MissingError

TEXTS = ("prompt", "text", "turns")  # fields of a line of JSON that hold a prompt


def read_prompts(path: Path) -> tuple[str, ...]:
    """Read a prompt a line, as text or JSON.

    Raises:
        SpsError: as `tasks.jsonl.prompts_in`.
        MissingError: a package that only such a file needs is not installed.
    """
    from spsbench.tasks.jsonl import prompts_in

    try:
        return prompts_in(path)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"{error.name} is not installed ({path}): expected it for such data. "
            "Install it, or give a prompt a line"
        ) from error
