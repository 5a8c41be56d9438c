"""Lines that are worth saying once."""

from collections.abc import Callable


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say` without the lines that it was told before."""
    said: set[str] = set()

    def told(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return told
