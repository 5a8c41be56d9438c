"""docker or podman, when asked for by name: a container without network, rights or writable root.

The image is the user's to choose; its Python must be 3.11 or newer.
"""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spsbench.sandbox.interpreter import ENVIRONMENT, FLAGS, INSIDE
from spsbench.sandbox.level import Start

SCRATCH = "/work"


@dataclass(frozen=True, slots=True)
class Container:
    """A container for each program."""

    name: str  # docker or podman
    image: str = "python:3.11-slim"

    def missing(self) -> str | None:
        """Whether its command is installed; whether its engine runs is seen when it starts."""
        return None if shutil.which(self.name) else "not installed"

    def files(self) -> list[str]:
        """The command."""
        return [shutil.which(self.name) or ""]

    def flags(self) -> list[str]:
        """Its image and command line, but for the name."""
        return [word for word in self.command()[1:] if not word.startswith("sps-")]

    @contextmanager
    def start(self) -> Iterator[Start]:
        """The container is removed when its program ends."""
        order = {
            "confined": True,
            "landlock": False,  # the container's own files are all there is
            "readable": [],
            "writable": SCRATCH,
            "uid": None,
            "parent": None,
        }
        yield Start(self.command(), "/", order)

    def command(self) -> list[str]:
        """The whole command line."""
        made = [self.name, "run", "--rm", "--interactive", "--init", "--network", "none"]
        made += ["--name", f"sps-{uuid.uuid4().hex}", "--read-only", "--cap-drop", "ALL"]
        made += ["--security-opt", "no-new-privileges", "--user", "65534:65534"]
        made += ["--pids-limit", "64", "--memory", "2g", "--pull", "never"]
        made += ["--tmpfs", f"{SCRATCH}:size=32m,mode=1777", "--volume", f"{INSIDE}:/sbx:ro"]
        for name, value in ENVIRONMENT.items():
            made += ["--env", f"{name}={value}"]
        return [*made, self.image, "python", *FLAGS, "/sbx/runner.py"]
