"""Docker and Podman, when they are asked for by name: one container a program.

Their client may die without its container: what is left is removed by name, and the jail's own
timers, which need an init process above it, end it in any case.
"""

import shutil
import sys

from spsbench.sandbox import landlock
from spsbench.sandbox.interpreter import ENVIRONMENT, FLAGS, Interpreter
from spsbench.sandbox.levels import JAIL_SCRIPT, NOBODY, WORK, Level, UnavailableError, confined
from spsbench.sandbox.verdict import MIB, ProgramLimits

ENGINES = ("docker", "podman")
IMAGE = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
INSIDE = "/jail.py"
PYTHON = "python3"
FOLDERS = ("/usr", "/lib", "/lib64")  # of the image

GUARD = (
    *("--rm", "--interactive", "--init", "--pull=missing", "--log-driver=none"),
    *("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
    *("--pids-limit=64", "--ipc=none", "--hostname=sps"),
)


def level(engine: str, image: str, limits: ProgramLimits) -> Level:
    """A container of `image`, which must have Python, around the jail.

    Raises:
        UnavailableError: the engine is not installed, or the kernel has no Landlock.
    """
    program = shutil.which(engine)
    if program is None:
        raise UnavailableError("not installed")
    abi = landlock.abi()
    if abi < 1:
        raise UnavailableError("the kernel's Landlock is off")
    memory = f"{2 * limits.memory}m"
    view = Interpreter(PYTHON, FOLDERS, "")
    return Level(
        name=engine,
        command=(
            *(program, "run", *GUARD, f"--user={NOBODY}:{NOBODY}"),
            *(f"--memory={memory}", f"--memory-swap={memory}"),
            *("--tmpfs", f"{WORK}:size={limits.files * MIB},mode=1777", "--workdir", WORK),
            *("--volume", f"{JAIL_SCRIPT}:{INSIDE}:ro"),
            *(f"--env={name}={value}" for name, value in ENVIRONMENT.items()),
        ),
        inner=(image, PYTHON, *FLAGS, INSIDE),
        python="",
        confinement=confined(abi=abi, interpreter=view, scratch=True, drop=False),
        flags={"image": image, "options": list(GUARD), "landlock": abi, "seccomp": "allow list"},
        environment={"PATH": "/usr/bin:/bin"},
        own_pids=True,
        container=program,
    )
