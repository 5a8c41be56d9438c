"""How long OpenMP's threads wait for each other in a loop before they sleep."""

import os
from collections.abc import MutableMapping

BOUND = "2000"  # turns of the loop; GNU's default is billions where no variable says otherwise
SAID = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def bound_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads that wait for each other sleep soon, unless the user has said how they wait.

    Beside other work a thread that spins keeps the one that it waits for from running: a token
    takes ten to thirty times as long. OpenMP reads this once, when torch is imported.
    """
    if not any(name in environment for name in SAID):
        environment["GOMP_SPINCOUNT"] = BOUND
