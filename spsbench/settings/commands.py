"""Options of `sps verify` and `sps plan`, one record each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.errors import UsageError
from spsbench.settings.cell import SEED_MAX
from spsbench.settings.options import (
    AUDIT,
    MACHINE,
    METHOD,
    RUN,
    SIZE,
    WORK,
    Check,
    Option,
    Setting,
    between,
    one_of,
    options_of,
    parse_range,
    ranges,
)
from spsbench.settings.sweep import MAX_SAMPLES, SampleSeed

MAX_TEXTS = 10**9
BIAS = Check(lambda bias: 0 < bias < 1, "above 0 and below 1")
LEVEL = Check(lambda level: 0 < level <= 0.1, "above 0, at most 0.1")
AUDIT_COUNT = between(1, MAX_TEXTS, "1 or more")
Level = Annotated[
    float, Option(AUDIT, LEVEL, help="Probability of a false alarm over the whole audit.")
]
Chat = Annotated[
    str,
    Option(
        WORK,
        one_of("auto", "on", "off"),
        help="Put prompts into the target's chat template: auto (if it has one), on or off.",
    ),
]
CostsFile = Annotated[
    Path | None,
    Option(RUN, metavar="FILE", help="Use this table of costs instead of measuring them."),
]
AuditTasks = Annotated[
    tuple[str, ...],
    Option(
        AUDIT,
        default_text="humaneval and xsum:data=mini",
        help="Task that supplies the prompts, or a FILE of them; repeatable.",
    ),
]
AuditPrompts = Annotated[int, Option(AUDIT, AUDIT_COUNT, help="Maximum number of prompts.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Options of `sps verify pair`: prompts, the bias to detect, and when to end.

    Args:
        bias: Smallest bias that the audit must detect.
        max_tokens: Maximum tokens from speculative sampling; the audit then ends, decided or not.
        workers: Worker processes.
    """

    task: AuditTasks = ()
    prompts: AuditPrompts = 40
    sample_seed: SampleSeed = None
    bias: Annotated[float, Option(AUDIT, BIAS)] = 0.02
    level: Level = 1e-3
    max_tokens: Annotated[int, Option(AUDIT, AUDIT_COUNT)] = 200_000
    workers: Annotated[
        int | None, Option(AUDIT, between(1, 1024), default_text="cores, for small models on a CPU")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Options of `sps verify run`.

    Args:
        bias: Smallest bias that the audit must detect.
        max_tokens: Maximum tokens to audit per method.
    """

    bias: Annotated[float | None, Option(AUDIT, BIAS, default_text="what the length allows")] = None
    level: Level = 1e-3
    max_tokens: Annotated[int | None, Option(AUDIT, AUDIT_COUNT, default_text="all")] = None


OF_AUDIT: Mapping[str, Setting] = options_of(Audit)
"""Name -> setting, of `sps verify pair`."""
OF_REPLAY: Mapping[str, Setting] = options_of(Replay)
"""Name -> setting, of `sps verify run`."""


TASK = "xsum:data=mini"  # where nobody names prompts: what the bundled pair was trained for
KS = "1..8,10,12,16"
FACTOR = between(1e-6, 1e6, "a number above 0")
MAX_BATCH = 256  # texts of a batch whose costs are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Options of `sps plan`.

    Args:
        prompts: File of your own prompts, one a line, as text or JSON.
        k: Values of K to compare: 4, 1..8 or 2,4,6.
        limit: Number of prompts on which acceptance is recorded.
        held_back: Number of further prompts, on which the best candidates are timed.
        sample_seed: Seed that draws the prompts of both from all, each group in proportion.
        confirm: How many of the best candidates to time beside auto-regressive sampling.
        cost_seconds: Seconds to spend on measuring the cost of forward passes.
        trace: Use this recorded trace, or the traces of a run, instead of generating texts.
        draft_cost: Predict for a draft that takes this many times as long.
        target_cost: Predict for a target that takes this many times as long.
        batch: Also measure batches, and predict K and speed-up by the texts at a time: 1..32.
        system: System message, for prompts in a chat template.
        every: Show a row for every candidate, not only for the best K.
    """

    prompts: Annotated[Path | None, Option(WORK)] = None
    k: Annotated[str, Option(METHOD, flags=("k",), parse=ranges)] = KS
    limit: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 64
    held_back: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 24
    sample_seed: Annotated[int, Option(SIZE, between(0, SEED_MAX, "0..2^64-1"))] = 0
    confirm: Annotated[int, Option(SIZE, between(0, 100))] = 2
    cost_seconds: Annotated[float, Option(SIZE, between(0.1, 1e5, "0.1..100000"))] = 20.0
    trace: Annotated[tuple[str, ...], Option(RUN, metavar="PATH")] = ()
    costs: CostsFile = None
    draft_cost: Annotated[float | None, Option(MACHINE, FACTOR)] = None
    target_cost: Annotated[float | None, Option(MACHINE, FACTOR)] = None
    batch: Annotated[str | None, Option(MACHINE, parse=ranges)] = None
    chat: Chat = "auto"
    system: Annotated[str | None, Option(WORK)] = None
    every: Annotated[bool, Option(RUN)] = False

    def __post_init__(self) -> None:
        self.batch_sizes()  # refuses

    def batch_sizes(self) -> list[int]:
        """Return the sizes of batches, rising; none without `batch`.

        Raises:
            UsageError: no range, a size out of it, or hypothetical costs beside them.
        """
        if self.batch is None:
            return []
        if self.factors:
            raise UsageError(
                "`batch` with `draft_cost` or `target_cost`: expected costs as they were measured "
                "in batches. Leave one out"
            )
        try:
            return sorted(parse_range(self.batch, low=1, high=MAX_BATCH))
        except ValueError as error:
            raise UsageError(f"`batch` {error}") from error

    @property
    def factors(self) -> dict[str, float]:
        """Return the factors on the costs of draft and target, where some are set."""
        factors = {"draft": self.draft_cost, "target": self.target_cost}
        return {part: factor for part, factor in factors.items() if factor is not None}

    @property
    def unmeasured(self) -> str:
        """Return why no candidates are timed; empty if they are."""
        if self.factors:
            return "the costs are as if they were others (`draft_cost`, `target_cost`)"
        if self.costs is not None:
            return "the costs are given (`costs`), and may be of another machine"
        return "" if self.confirm else "`confirm` is 0"


LISTS = ("draft", "drafter", "verifier", "schedule")
"""Options of cells that may be given more than once: each value is compared."""

OF_PLANNING: Mapping[str, Setting] = options_of(Planning)
"""Name -> setting, of `sps plan`."""
