"""`sps score`: programs that a model wrote, run where they can reach nothing, and judged."""

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import options as o
from spsbench.config import check
from spsbench.errors import UsageError
from spsbench.ranges import parse_range

SANDBOX, SIZE = "Sandbox", "Limits"
MEMORY_LEAST, MEMORY_MOST = 64, 1 << 20  # MiB
K_MOST = 10_000


def score(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help="A run of humaneval, or JSONL samples.")
    ],
    sandbox: Annotated[
        str,
        o.option(SANDBOX, "--sandbox", help="auto, bwrap, landlock, docker, podman or none."),
    ] = "auto",
    image: Annotated[
        str | None, o.option(SANDBOX, "--image", help="Of docker or podman, with Python >= 3.11.")
    ] = None,
    understood: Annotated[
        bool,
        o.option(
            SANDBOX, "--i-understand-this-runs-untrusted-code", help="With --sandbox none only."
        ),
    ] = False,
    timeout: Annotated[
        float, o.option(SIZE, "--timeout", help="Seconds of processor time a program.")
    ] = 3.0,
    memory: Annotated[int, o.option(SIZE, "--memory", help="MiB a program.")] = 1024,
    workers: Annotated[
        int | None, o.option(SIZE, "--workers", help="Programs at a time.", show_default="cores")
    ] = None,
    k: Annotated[
        str, o.option(o.OUTPUT, "--k", "-k", help="Of pass@k; those above n are n/a.")
    ] = "1,10,100",
    out: Annotated[
        Path | None,
        o.option(
            o.OUTPUT, "--out", "-o", help="Results of FILE.", show_default="FILE_results.jsonl"
        ),
    ] = None,
    allow_partial: Annotated[
        bool, o.option(o.OUTPUT, "--allow-partial", help="A FILE without some of the problems.")
    ] = False,
    debug: o.Debug = False,
) -> None:
    """Execute HumanEval programs in a sandbox that holds them, or refuse; then pass@k.

    Exit codes: 3 = no sandbox holds here; 5 = there are verdicts under other settings.
    """
    check(0.1 <= timeout <= 3600, "--timeout", timeout, "0.1..3600 seconds")
    check(MEMORY_LEAST <= memory <= MEMORY_MOST, "--memory", memory, "64..1048576 MiB")
    check(workers is None or 1 <= workers <= 1024, "--workers", workers, "1..1024")
    if understood and sandbox != "none":
        raise UsageError(
            f"--i-understand-this-runs-untrusted-code with --sandbox {sandbox}: expected it with "
            "--sandbox none only. Leave it out"
        )
    if image is not None and sandbox not in ("docker", "podman"):
        raise UsageError(f"--image with --sandbox {sandbox}: expected --sandbox docker or podman")
    try:
        wanted = parse_range(k, low=1, high=K_MOST)
    except ValueError as error:
        raise UsageError(f"--k {error}") from error

    from spsbench.cli.scoring import Held, score_file, score_folder
    from spsbench.environment import usable_cores
    from spsbench.sandbox.choice import choose
    from spsbench.sandbox.limits import MIB, Limits

    limits = Limits(seconds=timeout, memory=memory * MIB)
    is_run = what.is_dir()
    if is_run and (out is not None or allow_partial):
        raise UsageError("--out and --allow-partial go with a FILE: expected a RUN without them")
    level = choose(sandbox, understood=understood, image=image)
    held = Held(level, limits, workers or usable_cores())
    if is_run:
        code = score_folder(what, held, wanted)
    else:
        code = score_file(what, held, wanted, out=out, partial=allow_partial)
    raise typer.Exit(code)
