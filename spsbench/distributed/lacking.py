"""What no worker could make: the rest is there, and the command that made it goes on."""

from spsbench.errors import Exit, SpsError


class BrokenOffError(SpsError):
    """Units that no worker could make."""

    code = Exit.UNAVAILABLE


def check_whole(lacking: int, what: str) -> None:
    """Raise unless everything was made.

    Raises:
        BrokenOffError: it was not.
    """
    if lacking:
        raise BrokenOffError(
            f"{lacking} {what}: expected one of each. The others are kept: see what was said of "
            "them, and go on with --resume"
        )
