"""Options of `sps verify` and `sps plan`, one record each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from spsbench.errors import UsageError
from spsbench.settings.cell import SEED_MAX
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.constraint import KINDS as CONSTRAINTS
from spsbench.settings.execution import Access, OutputFolder, Workers
from spsbench.settings.grid import MAX_SAMPLES, Grid, SampleSeed
from spsbench.settings.options import (
    AUDIT,
    MACHINE,
    METHOD,
    RUN,
    SIZE,
    WORK,
    Check,
    Option,
    OptionSpec,
    between,
    one_of,
    reads_numbers,
)
from spsbench.spec import K_MAX

BIAS = Check(lambda bias: 0 < bias < 1, "above 0 and below 1")
LEVEL = Check(lambda level: 0 < level <= 0.1, "above 0, at most 0.1")
AUDIT_COUNT = between(1, 10**9, "1 or more")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of `sps verify pair`: prompts, the bias to detect, and when to end.

    Args:
        task: Task that supplies the prompts, or a FILE of them; repeatable.
        prompts: Maximum number of prompts.
        sample_seed: Seed that draws the prompts from all, each group in proportion.
        bias: Smallest bias that the audit must detect.
        max_tokens: Maximum tokens from speculative sampling; the audit then ends, decided or not.
        workers: Worker processes.
    """

    task: Annotated[
        tuple[str, ...], Option(AUDIT, default_text="humaneval and xsum:data=mini")
    ] = ()
    prompts: Annotated[int, Option(AUDIT, AUDIT_COUNT)] = 40
    sample_seed: SampleSeed = None
    bias: Annotated[float, Option(AUDIT, BIAS)] = 0.02
    level: Level = 1e-3
    max_tokens: Annotated[int, Option(AUDIT, AUDIT_COUNT)] = 200_000
    workers: Annotated[
        int | None, Option(AUDIT, between(1, 1024), default_text="cores, for small models on a CPU")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAuditOptions:
    """Options of `sps verify run`.

    Args:
        bias: Smallest bias that the audit must detect.
        max_tokens: Maximum tokens to audit per method.
    """

    bias: Annotated[float | None, Option(AUDIT, BIAS, default_text="what the length allows")] = None
    level: Level = 1e-3
    max_tokens: Annotated[int | None, Option(AUDIT, AUDIT_COUNT, default_text="all")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSearch:
    """Options of `sps verify head`: the texts along which every wiring drafts.

    Args:
        texts: Texts: a FILE or a task; repeatable.
        count: Number of texts, from each source equally.
        tokens: First tokens of a text that are read.
        depth: Tokens of a draft.
    """

    texts: Annotated[
        tuple[str, ...], Option(AUDIT, default_text="humaneval and xsum:data=mini")
    ] = ()
    count: Annotated[int, Option(AUDIT, between(1, 10_000))] = 12
    tokens: Annotated[int, Option(AUDIT, between(16, 1 << 20))] = 128
    depth: Annotated[int, Option(AUDIT, between(1, 16))] = 3


TASK = "xsum:data=mini"  # where nobody names prompts: what the bundled pair was trained for
FACTOR = between(1e-6, 1e6, "a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Options of `sps plan`.

    Args:
        prompts: File of your own prompts, one a line, as text or JSON.
        k: Values of K to compare: 4, 1..8 or 2,4,6.
        limit: Number of prompts on which acceptance is recorded.
        held_back: Number of further prompts, on which the best candidates are timed.
        sample_seed: Seed that draws the prompts of both from all, each group in proportion.
        confirm: Number of the best candidates to time, compared with auto-regressive sampling.
        cost_seconds: Seconds to spend on measuring the cost of forward passes.
        trace: Use this recorded trace, or the traces of a run, instead of generating texts.
        draft_cost: Predict for a draft that takes this many times as long.
        target_cost: Predict for a target that takes this many times as long.
        batch: Also measure batches, and predict K and speed-up by batch size: 1..32.
        system: System message, for prompts in a chat template.
        every: Show a row for every candidate, not only for the best K.
    """

    prompts: Annotated[Path | None, Option(WORK)] = None
    k: Annotated[
        tuple[int, ...],
        Option(METHOD, flags=("k",), default_text="1..8,10,12,16", parse=reads_numbers(1, K_MAX)),
    ] = (*range(1, 9), 10, 12, 16)
    limit: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 64
    held_back: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 24
    sample_seed: Annotated[int, Option(SIZE, between(0, SEED_MAX, "0..2^64-1"))] = 0
    confirm: Annotated[int, Option(SIZE, between(0, 100))] = 2
    cost_seconds: Annotated[float, Option(SIZE, between(0.1, 1e5, "0.1..100000"))] = 20.0
    trace: Annotated[tuple[str, ...], Option(RUN, metavar="PATH")] = ()
    costs: CostsFile = None
    draft_cost: Annotated[float | None, Option(MACHINE, FACTOR)] = None
    target_cost: Annotated[float | None, Option(MACHINE, FACTOR)] = None
    batch: Annotated[tuple[int, ...], Option(MACHINE, parse=reads_numbers(1, 256))] = ()
    chat: Chat = "auto"
    system: Annotated[str | None, Option(WORK)] = None
    every: Annotated[bool, Option(RUN)] = False

    def __post_init__(self) -> None:
        if self.batch and self.factors:
            raise UsageError(
                "`batch` with `draft_cost` or `target_cost`: expected costs as they were measured "
                "in batches. Leave one out"
            )

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
"""Options of cells of which a plan compares several values."""


@dataclass(frozen=True)
class Candidates(Grid):
    """The options of the cells that a plan compares; its texts are free ones."""

    AXES: ClassVar[Mapping[str, OptionSpec]] = {
        name: replace(setting, many=name in LISTS)
        for name, setting in OF_CELL.items()
        if name not in ("k", *CONSTRAINTS)
    }

    @property
    def options(self) -> dict[str, Any]:
        """Return the options; those of `LISTS` as lists."""
        return {n: list(v) if n in LISTS else v[0] for n, v in self.axes.items()}


RATIO = between(0, 1e6, "a number from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of `sps plan --log` that no other plan has.

    Args:
        log: Answer from this log of served requests alone: a file, -, or a run; repeatable.
        tokenizer: Tokenizer of the target, for logs of texts: a tokenizer.json, a folder, or a
            model.
        unread: Count requests that have text in fields which are not read, too.
        alpha: Only print the formulas for these acceptance rates: 0.5,0.7,0.9.
        draft_ratio: Cost of a drafted token of a model, in plain passes.
        row_ratio: Cost of a further row of the target's pass, in plain passes.
        roofline: Predict costs by a roofline model: h100,params=8e9,kv_bytes=131072.
    """

    log: Annotated[tuple[str, ...], Option(RUN, metavar="PATH")] = ()
    tokenizer: Annotated[str | None, Option(WORK)] = None
    unread: Annotated[bool, Option(RUN)] = False
    alpha: Annotated[str | None, Option(MACHINE)] = None
    draft_ratio: Annotated[float | None, Option(MACHINE, RATIO)] = None
    row_ratio: Annotated[float | None, Option(MACHINE, RATIO)] = None
    roofline: Annotated[str | None, Option(MACHINE)] = None


PLAN = (Planning, Candidates, OutputFolder, Workers, Access)
"""The records of a plan's options."""
