"""No isolation: resource limits and an empty environment only. Never chosen unless named."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from spsbench.sandbox.interpreter import FLAGS, INSIDE, python
from spsbench.sandbox.level import Start
from spsbench.sandbox.scratch import new_scratch


class Unconfined:
    """The program can do what its caller can."""

    name = "none"

    def missing(self) -> str | None:
        """Nothing is needed."""

    def files(self) -> list[str]:
        """None."""
        return []

    def flags(self) -> list[str]:
        """The interpreter's."""
        return list(FLAGS)

    @contextmanager
    def start(self) -> Iterator[Start]:
        """In a scratch folder that is removed afterwards."""
        scratch = new_scratch()
        try:
            runner = str(INSIDE / "runner.py")
            yield Start([python(), *FLAGS, runner], scratch, {"confined": False})
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
