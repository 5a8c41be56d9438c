"""How models are got at, and with how many threads they run: no part of what is generated."""

from dataclasses import dataclass
from typing import Annotated

from spsbench.hardware.ranks import RANK_TIMEOUT
from spsbench.settings.option import MACHINE, MODELS, Option, between

THREADS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What every command that loads models takes."""

    offline: Annotated[bool, Option("Never ask the hub.", MODELS)] = False
    allow_pickle: Annotated[bool, Option("Load weights that are not safetensors.", MODELS)] = False
    threads: Annotated[
        int | None,
        Option(
            "CPU threads; auto looks at what else the machine does.",
            MACHINE,
            between(1, THREADS_MAX),
            shown="auto",
            metavar="N|auto",
            none="auto",
        ),
    ] = None
    rank_timeout: Annotated[
        float,
        Option(
            "With --parallel: seconds after which a rank that does not answer is lost.",
            MACHINE,
            between(1, 1e6, "1..1000000"),
        ),
    ] = RANK_TIMEOUT
