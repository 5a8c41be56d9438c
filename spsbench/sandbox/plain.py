"""The levels without a helper program: the jail on its own, and no isolation at all."""

import os

from spsbench.sandbox import landlock
from spsbench.sandbox.interpreter import ENVIRONMENT, Interpreter
from spsbench.sandbox.levels import UNCONFINED, Level, UnavailableError, confined, inner
from spsbench.sandbox.verdict import Limits


def jailed(interpreter: Interpreter, limits: Limits) -> Level:
    """Landlock and seccomp, for machines that allow no namespaces. Nothing can be written.

    Raises:
        UnavailableError: no Landlock, or one that does not govern the network.
    """
    abi = landlock.abi()
    if abi < landlock.FULL:
        raise UnavailableError(f"the kernel's ABI is {abi}, {landlock.FULL} is needed")
    drop = os.geteuid() == 0 and interpreter.open_to_others()
    return Level(
        name="landlock",
        command=(),
        inner=inner(interpreter),
        python=interpreter.version,
        confinement=confined(abi=abi, interpreter=interpreter, scratch=False, drop=drop),
        flags={"landlock": abi, "seccomp": "allow list", "user": "nobody" if drop else "own"},
        environment=ENVIRONMENT,
    )


def unconfined(interpreter: Interpreter, limits: Limits) -> Level:
    """Limits of resources, and nothing that holds a program that means harm."""
    return Level(
        name="none",
        command=(),
        inner=inner(interpreter),
        python=interpreter.version,
        confinement=UNCONFINED,
        environment=ENVIRONMENT,
        folder=None,
    )
