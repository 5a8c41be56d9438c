"""Options of `sps score`."""

from dataclasses import dataclass
from typing import Annotated

from spsbench.errors import UsageError
from spsbench.extensions.sandbox.choice import AUTOMATIC, UNDERSTOOD
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.settings.options import MACHINE, Option, between, one_of, reads_numbers

SANDBOX, SCORES = "Sandbox", "Scores"
DEFAULT = ProgramLimits()
LEAST_MEMORY = 64  # MiB; an interpreter with a few modules needs about half of it
MOST_MEMORY = 1 << 20
K_MOST = 10_000
NAMES = ("auto", *AUTOMATIC, "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOptions:
    """Options of a scoring: the sandbox, the workers, and what is scored.

    Args:
        sandbox: Isolation of the programs; auto is the strongest that works here.
        timeout: Seconds of CPU time per program.
        memory: MiB of address space per program.
        i_understand_this_runs_untrusted_code: Confirm --sandbox none, which isolates nothing.
        workers: Number of programs to run at a time.
        k: Values of k for pass@k: 1,10,100 or 1..5.
        allow_partial: Compute scores even if problems are missing.
        overwrite: Run all programs again; the old log is moved aside.
    """

    sandbox: Annotated[str, Option(SANDBOX, one_of(*NAMES), metavar="|".join(NAMES))] = "auto"
    timeout: Annotated[float, Option(SANDBOX, between(0.1, 3600, "0.1 to 3600 seconds"))] = (
        DEFAULT.timeout
    )
    memory: Annotated[
        int,
        Option(SANDBOX, between(LEAST_MEMORY, MOST_MEMORY, f"{LEAST_MEMORY} to {MOST_MEMORY} MiB")),
    ] = DEFAULT.memory
    i_understand_this_runs_untrusted_code: Annotated[bool, Option(SANDBOX)] = False
    workers: Annotated[
        int | None,
        Option(MACHINE, between(1, 1024, "1 to 1024"), flags=("w",), default_text="cores"),
    ] = None
    k: Annotated[
        tuple[int, ...],
        Option(SCORES, flags=("k",), default_text="1,10,100", parse=reads_numbers(1, K_MOST)),
    ] = (1, 10, 100)
    allow_partial: Annotated[bool, Option(SCORES)] = False
    overwrite: Annotated[bool, Option(SCORES)] = False

    def __post_init__(self) -> None:
        if self.i_understand_this_runs_untrusted_code and self.sandbox != "none":
            raise UsageError(
                f"{UNDERSTOOD} with `sandbox` {self.sandbox}: expected `sandbox` none with it"
            )
