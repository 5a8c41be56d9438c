"""Settings of a command's execution: access to models, workers, the folder of a run.

Nothing here changes the generated text.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from spsbench.errors import UnavailableError, UsageError
from spsbench.settings.options import MACHINE, MODELS, RUN, Option, between

THREADS_MAX = 1024
HERE, PROCESSES, RAY = "here", "processes", "ray"
WORKERS = re.compile(r"here|ray(:.++)?|processes:[1-9]\d{0,3}", re.ASCII)
SHARD = re.compile(r"\d{1,9}/\d{1,9}", re.ASCII)
NO_RAY = "no Ray (`on` ray): expected it. Run pip install ray, or give `on` processes:N"


def _read_count(value: Any, name: str) -> Any:
    """Read a number as a word of a command line; auto is as not given."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        return int(value)
    return None if value == "auto" else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to models: the hub, pickle files, CPU threads.

    Args:
        offline: Never contact the Hugging Face Hub.
        allow_pickle: Allow weights in pickle files, which can run code when they are loaded.
        threads: CPU threads; auto leaves room for other programs.
    """

    offline: Annotated[bool, Option(MODELS)] = False
    allow_pickle: Annotated[bool, Option(MODELS)] = False
    threads: Annotated[
        int | None,
        Option(
            MACHINE,
            between(1, THREADS_MAX),
            default_text="auto",
            metavar="N|auto",
            parse=_read_count,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of a run: this process, others of this machine, or a cluster.

    Args:
        on: Where to run: here, processes:N, ray (this machine) or ray:ADDRESS.
    """

    on: Annotated[str, Option(MACHINE)] = HERE

    def __post_init__(self) -> None:
        if not WORKERS.fullmatch(self.on):
            raise UsageError(
                f"`on` {self.on}: expected here, processes:N, ray or ray:ADDRESS (such as "
                "ray:auto, or ray:10.0.0.1:6379)"
            )
        if self.kind == RAY and find_spec("ray") is None:
            raise UnavailableError(NO_RAY)

    @property
    def kind(self) -> str:
        """Return here, processes or ray."""
        return self.on.partition(":")[0]

    @property
    def argument(self) -> str:
        """Return the number or the address after the colon."""
        return self.on.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """The folder of a run, and what to do if a run exists there.

    Args:
        out: Folder for the results.
        resume: Resume an interrupted run.
        overwrite: Move an existing run aside and start over.
        shard: Run only slice i of n of the samples, counted from 0.
        score: Run generated programs in a sandbox, for pass@k.
    """

    out: Annotated[Path | None, Option(RUN, flags=("o",), default_text="results/...")] = None
    resume: Annotated[bool, Option(RUN)] = False
    overwrite: Annotated[bool, Option(RUN)] = False
    shard: Annotated[str, Option(RUN)] = "0/1"
    score: Annotated[bool | None, Option(RUN, default_text="if a sandbox is available")] = None

    def __post_init__(self) -> None:
        if self.overwrite and self.resume:
            raise UsageError("`resume` with `overwrite`: expected one of them. Leave one out")
        index, total = self.slice if SHARD.fullmatch(self.shard) else (0, 0)
        if index >= total:
            raise UsageError(
                f"`shard` {self.shard}: expected i/n with i from 0 to n - 1, such as 0/4"
            )

    @property
    def slice(self) -> tuple[int, int]:
        """Return the index of the shard, from 0, and the number of shards."""
        index, _, total = self.shard.partition("/")
        return int(index), int(total)
