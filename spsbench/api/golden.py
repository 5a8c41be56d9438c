"""`sps verify head`: expected acceptance of a head, stored once, and compared ever after."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.api.load import load
from spsbench.audit.statistical.golden import (
    FAINT,
    NEAR,
    Golden,
    Parting,
    Passage,
    along,
    by_depth,
    parting,
)
from spsbench.audit.statistical.jobs import generate, plain_cell
from spsbench.audit.statistical.pair import TASKS, prompts_of
from spsbench.audit.statistical.replay import rates_in
from spsbench.errors import DataError, UsageError
from spsbench.messages import takes_say
from spsbench.methods.resolve import plan_of
from spsbench.models.config import read_object
from spsbench.settings.commands import GoldenAsked
from spsbench.settings.options import take_record
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file

log = logging.getLogger(__name__)

LIMIT = 256 << 20  # bytes of a golden file
READABLE = {
    "dtype": "float32",
    "draft_dtype": "float32",
    "engine": "eager",
    "draft_engine": "eager",
}
"""How golden acceptance is measured."""


@dataclass(frozen=True, slots=True)
class HeadFound:
    """What was expected of a head, and what was found."""

    golden: Golden
    path: Path
    made: bool  # whether the file was written now
    now: Golden | None = None  # the same texts, run otherwise
    parted: Parting | None = None
    log: tuple[float, ...] | None = None  # acceptance by depth of another engine
    log_parts: int | None = None  # the first depth at which it parts

    def __bool__(self) -> bool:
        return self.parted is None and self.log_parts is None

    @property
    def line(self) -> str:
        """The result in a sentence."""
        if self.parted is not None:
            p, (expected, found) = self.parted, self.parted.slots
            return (
                f"PARTED at depth {p.depth}: acceptance {p.found:.3f}, expected {p.expected:.3f}; "
                f"widest in {p.passage} after {p.place} tokens, where the laws overlap "
                f"{found.overlap:.3f} (token {found.likeliest}) instead of {expected.overlap:.3f} "
                f"(token {expected.likeliest})"
            )
        if self.log is not None and self.log_parts is not None:
            at = self.log_parts
            expected_there = self.golden.depths[at - 1].acceptance
            return (
                f"PARTED at depth {at}: the log has acceptance {self.log[at - 1]:.3f}, expected "
                f"{expected_there:.3f}"
            )
        kept = f"{self.golden.kept:.2f} of {len(self.golden.depths)} drafted tokens kept"
        if self.now is None and self.log is None:
            return f"golden: {kept} in expectation"
        return f"held: acceptance within {NEAR:g} of the golden one at every depth ({kept})"


@takes_say
def verify_head(**asked: Any) -> HeadFound:
    """Expected acceptance by depth of a target and its head.

    The first time it is measured in float32 by the engine `eager` and written to `golden`; from
    then on the pair is run as asked, along the same texts, and compared.

    Args:
        say: receives each line that a user should know; without it they go to `logging` alone.
        asked: `golden`, `task`, `prompts`, `tokens`, `log`, and options of cells.

    Raises:
        SpsError: options that cannot be meant, or a golden file of another pair.
    """
    plan = take_record(GoldenAsked, asked)
    asked = {name: value for name, value in asked.items() if value is not None}
    path = Path(plan.golden)
    made = not path.exists()
    if made:
        pair = load(**asked | READABLE)
        golden = measured(pair, texts_of(pair, plan))
        replace_file(path, (json.dumps(golden.to_json(), indent=1) + "\n").encode())
    else:
        golden = Golden.from_json(read_object(path, LIMIT), str(path))
    rates = by_depth(rates_in(Path(plan.log))) if plan.log else None
    parts = None if rates is None else log_parting(golden, rates)
    now = parted = None
    if not made or any(str(asked.get(name, READABLE[name])) != READABLE[name] for name in READABLE):
        pair = load(**asked)
        now = measured(pair, golden.passages)
        check_same(golden, now, path)
        parted = parting(golden, now)
    if golden.depths and golden.depths[0].acceptance < FAINT:
        log.info(
            f"note: at depth 1 {golden.depths[0].acceptance:.3f} is kept, hardly more than chance: "
            "is it a head of this target, and are its layers read as its writer counts them?"
        )
    given = None if rates is None else tuple(rates)
    return HeadFound(golden, path, made, now, parted, given, parts)


def texts_of(pair: Any, plan: GoldenAsked) -> list[Passage]:
    """Prompts, and what the target alone makes of each."""
    cell, loaded = pair.configured()
    short = cell.but(max_new_tokens=plan.tokens)
    tasks = [Spec.parse(name) for name in plan.task] or TASKS
    found = prompts_of(short, loaded, tasks, plan.prompts)
    if not found:
        raise DataError("no prompt fits the context (--task): expected one. Name another task")
    alone = plain_cell(short)
    return [
        Passage(p.name, p.ids, generate(alone, loaded, p.ids, p.name, 0).tokens, ()) for p in found
    ]


def measured(pair: Any, passages: Sequence[Passage]) -> Golden:
    """What is expected of a pair along some texts."""
    cell, loaded = pair.configured()
    if plan_of(cell.method.drafter).tree:
        raise UsageError(
            f"--drafter {cell.method.drafter}: expected one that drafts chains. Leave out its shape"
        )
    depth = cell.k
    if not depth:
        raise UsageError("--k: expected K of 1 or more, the depth that is looked at")
    done = tuple(
        Passage(
            each.name,
            each.prompt,
            each.tokens,
            tuple(map(tuple, along(cell, loaded, each.prompt, each.tokens, depth))),
        )
        for each in passages
    )
    target, draft = cell.models.target, cell.models.draft
    dtypes = f"{loaded.target.dtype}".removeprefix("torch.")
    head = "" if loaded.head is None else str(loaded.head.description)
    return Golden(
        target=str(target),
        head=str(draft or cell.method.drafter),
        kind=head,
        drafter=str(cell.method.drafter),
        digests=pair.digests(),
        sampling={
            **cell.sampling.recorded_warp,
            "k": depth,
        },
        run={"dtype": dtypes, "engine": str(target.engine)},
        passages=done,
    )


def check_same(golden: Golden, now: Golden, path: Path) -> None:
    """A golden file is compared with the pair and the settings that it was made of.

    Raises:
        DataError: it is of another one.
    """
    for name in ("digests", "sampling", "drafter"):
        one, two = getattr(golden, name), getattr(now, name)
        if one != two:
            raise DataError(
                f"{path} is of another pair: {name} {one} there, {two} now. Name another file with "
                "--golden, or remove it"
            )


def log_parting(golden: Golden, log: Sequence[float]) -> int | None:
    """The first depth at which another engine's acceptance is another.

    Its texts are others, so that more than rounding is allowed: four standard errors of a share
    over the places of the golden texts, besides `NEAR`.
    """
    for each, found in zip(golden.depths, log, strict=False):
        a = each.acceptance
        if abs(a - found) > NEAR + 4 * (max(a * (1 - a), 0.01) / each.places) ** 0.5:
            return each.depth
    return None
