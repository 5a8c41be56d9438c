"""What arguments must be; a ValueError becomes a line with the name of what they were given to."""

import math


def check_most(most: int) -> None:
    """The largest K."""
    if most < 1:
        raise ValueError(f"most is {most}: expected 1 or more")


def check_share(name: str, value: float) -> None:
    """A number between 0 and 1, both included."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}: expected 0 to 1")


def check_inside(name: str, value: float) -> None:
    """A number between 0 and 1, neither included."""
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}: expected more than 0 and less than 1")


def check_positive(name: str, value: float) -> None:
    """A finite number of 0 or more."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}: expected 0 or more")
