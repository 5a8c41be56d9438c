"""Lines that are worth saying once."""

from collections.abc import Callable

from spsbench.settings.telling import Say


def once(say: Say) -> Callable[[str], None]:
    """`say` without the lines that it was told before."""
    said: set[str] = set()

    def told(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return told
