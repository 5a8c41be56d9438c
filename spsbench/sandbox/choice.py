"""Which level is used: the one named, or the strongest that holds."""

from spsbench.errors import UsageError
from spsbench.sandbox.bubblewrap import Bubblewrap
from spsbench.sandbox.container import Container
from spsbench.sandbox.landlocked import Landlocked
from spsbench.sandbox.level import Level
from spsbench.sandbox.selftest import Answer, holds
from spsbench.sandbox.unconfined import Unconfined
from spsbench.sandbox.verdict import SandboxError

AUTO: tuple[Level, ...] = (Bubblewrap(), Landlocked())  # strongest first
NAMED: dict[str, Level] = {
    level.name: level for level in (*AUTO, Container("docker"), Container("podman"))
}
NONE = Unconfined()
NAMES = ("auto", *NAMED, NONE.name)


def choose(name: str, *, understood: bool = False, image: str | None = None) -> Level:
    """The level called `name`, tested; `auto` is the strongest that holds.

    Raises:
        UsageError: no such level, or none at all without `understood`.
        SandboxError: it does not hold here; says why and what to install.
    """
    if name not in NAMES:
        raise UsageError(f"--sandbox {name!r}: expected one of {', '.join(NAMES)}. Choose one")
    if name == NONE.name:
        if not understood:
            raise UsageError(
                "--sandbox none: expected --i-understand-this-runs-untrusted-code with it. "
                "Programs written by a model could then do all that you can"
            )
        return NONE
    if name == "auto":
        return strongest()
    level = NAMED[name]
    if image is not None and isinstance(level, Container):
        level = Container(level.name, image)
    answer = holds(level)
    if not answer.holds:
        raise SandboxError(
            f"the sandbox {name} does not hold on this machine ({answer.reason}): expected one "
            "that no probe gets out of. Try --sandbox auto, and see `sps doctor`"
        )
    return level


def strongest() -> Level:
    """The first of `AUTO` that holds.

    Raises:
        SandboxError: none does.
    """
    reasons = []
    for level in AUTO:
        answer = holds(level)
        if answer.holds:
            return level
        reasons.append(f"{level.name}: {answer.reason}")
    raise SandboxError(
        f"no sandbox on this machine can hold model-written code ({'; '.join(reasons)}): expected "
        "bubblewrap, or a kernel with Landlock ABI 4. Install bubblewrap, or pass --sandbox none "
        "--i-understand-this-runs-untrusted-code"
    )


def survey() -> dict[str, Answer]:
    """Every level that `auto` may take, and whether it holds: for `sps doctor`."""
    return {level.name: holds(level) for level in AUTO}
