"""Every verifier with every kind of draft and every schedule: the law that comes out, exactly.

Whole texts at K = 2, and one round at larger K (`rounds`). Plug-ins of other packages are
enumerated like ours. A pairing that the engine refuses is forced past the refusal, to show what it
would have done. A plug-in that cannot be made over tables is left out, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.counterexample import Laws, counterexample, smallest
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import (
    DEEP_KINDS,
    MOST,
    REFERENCE,
    DraftKind,
    Reach,
    TreeDrawn,
    one_rounds,
    reach_of,
)
from spsbench.audit.exact.draft_kinds import GREEDY as ALONE
from spsbench.audit.exact.enumeration import EXACT, Proof, Walk, prove
from spsbench.audit.exact.tables import Pair, TableLM, open_over
from spsbench.audit.exact.thresholds import Facts, Rule
from spsbench.distributed.map_units import map_units
from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Weights
from spsbench.loop.types import (
    LM,
    Draft,
    Drawn,
    Guarantee,
    Noise,
    Purpose,
    Schedule,
    Verdict,
    Verifier,
)
from spsbench.methods.resolve import plan_of, usual
from spsbench.methods.schedules.by_history import Constant
from spsbench.plugins import is_ours, make
from spsbench.registry import entries
from spsbench.settings.cell import CONSTANT
from spsbench.settings.execution import Workers
from spsbench.spec import Spec

PROMPT = (0, 1, 0, 1, 0)  # look-ups find something in it
LOOKAHEAD = 2
ASKING = "model"  # the drafter that asks a schedule before each of its tokens
STOPPING = {
    "confidence": "confidence:t=0.6",
    "entropy": "entropy:t=0.65,step=0.05",
    "disco": "disco:t=0.7",
}
"""Laws over two tokens are never flat: at their defaults these would hardly ever stop."""

SMALL = {
    "tree": ("tree:shape=2x2", "tree:shape=2x1,siblings=iid", "tree:shape=2x1,siblings=distinct"),
    "topk": ("topk:width=2,nodes=5",),
    "sequoia": ("sequoia:nodes=3,siblings=distinct",),
    "chains": ("chains:n=2",),
}
"""Drafters whose trees would have too many paths as they come, in every way that they draw."""

STAND_INS = {kind.name: kind for kind in (*REFERENCE, *DEEP_KINDS)}

COMMON = frozenset({"model", "ngram", "none"})
"""Drafters that every rule is walked with. The others of ours draw as one of these or as one of
`REFERENCE` does, so that what is left to show is their own laws, which one rule does."""

WITNESS = "sps"
"""The rule that every schedule is walked with: a rule looks at drafts, never at who chose K, and
`match` would be exact whatever a schedule had seen."""

BLIND = frozenset({"match"})
"""Rules that never look at the law of a draft, and so not at that of a third sibling."""

MOST_DRAWN = 8  # tokens that are drawn in a round of whole texts
UPTO_OF_TREES = 3  # K of single rounds: two chains of 6 tokens have 4,096 drafts

SETTINGS: tuple[tuple[str, Pair, dict[str, Any]], ...] = (
    ("two tokens", Pair(2, 3, ("plain",)), {"tokens": 3}),
    ("three tokens", Pair(3, 2, ("plain",)), {"tokens": 2}),
    ("two tokens: ties, zeros, disjoint laws", Pair(2, 4), {"tokens": 3}),
    ("three tokens: ties, zeros, disjoint laws", Pair(3, 4), {"tokens": 2}),
    ("an EOS in the block", Pair(2, 3, ("plain",)), {"tokens": 3, "eos": frozenset({1})}),
    (
        "temperature, top-k, top-p",
        Pair(3, 5, ("plain", "ties")),
        {"tokens": 2, "warp": {"temperature": 1.5, "top_k": 2, "top_p": 0.7}},
    ),
    ("greedy", Pair(3, 4), {"tokens": 3, "warp": {"temperature": 0.0}}),
)
"""Name, laws and the rest of each case: texts of three tokens show what passes from round to round,
a vocabulary of three tokens what is left when one is refused."""

GREEDY = SETTINGS[-1:]

LONGER: tuple[tuple[str, Pair, dict[str, Any]], ...] = (
    ("three tokens, longer", Pair(3, 4), {"tokens": 3}),
    ("three tokens, an EOS in the block", Pair(3, 1), {"tokens": 3, "eos": frozenset({1})}),
)
"""Both at once: ten times as many paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One pairing of the compatibility table."""

    verifier: str
    drafter: str
    schedule: str
    guarantee: str  # what the verifier claims
    refused: str | None  # why, if it is
    distance: float | None  # the worst total variation of all settings; None: not enumerable
    worst: str = ""  # the setting of that
    emitted: float | None = None  # tokens of a first round, in the first setting
    paths: int = 0
    error: str | None = None
    lookahead: int = 0  # single rounds were walked up to this K
    reach: Reach = field(default_factory=Reach)  # the largest drafts that were walked
    left_out: str | None = None  # why, if a plug-in cannot be made here
    example: str = ""  # the shortest text that comes too often or too seldom, in the worst setting
    smallest: Sequence[str] = ()  # of a broken promise, the smallest case in numbers, in lines

    @property
    def verdict(self) -> str:
        """`exact`, `lossy`, `refused`, `BIASED`, `left out` or `not shown`."""
        if self.left_out is not None:
            return "left out"
        if self.refused is not None:
            return "refused" if self.wrong else "refused, though exact here"
        if self.distance is None:
            return "not shown"
        if self.guarantee == Guarantee.LOSSY.value:
            return "lossy"
        return "BIASED" if self.wrong else self.guarantee

    @property
    def wrong(self) -> bool:
        """Whether the law that came out is not the target's."""
        return self.error is not None or (self.distance or 0.0) > EXACT


class Pairing(NamedTuple):
    """A row that is to be enumerated, by names: it can be sent to another process."""

    verifier: Spec
    drafter: str  # none, as the schedule, where the verifier cannot be made
    schedule: str  # a spec as text
    deep: bool = False  # with every case


def pairings(
    specs: Sequence[Spec] = (),
    only: Sequence[Spec] = (),
    drafts: Sequence[Spec] = (),
    *,
    deep: bool = False,
) -> list[Pairing]:
    """All pairings, in the order of the table; of all verifiers, or of those in `specs`.

    The constant schedule goes with everything. Any other, or those in `only`, with what it can
    spoil: rules that promise something, and the drafter that asks it before every token. Drafters
    named in `drafts` take the place of all others, and go with every rule and schedule. With `deep`
    larger trees, too, each drafter with every rule, and each rule with every schedule.

    Raises:
        UsageError: no such verifier, drafter or schedule, or one with other arguments.
    """
    drafters = [kind for spec in drafts for kind in kinds_of(spec)]
    named = {kind.name for kind in drafters}
    drafters = drafters or list(drafter_kinds(deep=deep))
    for spec in only:
        made_schedule(str(spec))
    names = [str(spec) for spec in only] or [name for name, _ in schedules()]
    found: list[Pairing] = []
    for spec in specs or [Spec(entry.name) for entry in entries("verifiers")]:
        try:
            verifier: Verifier = make("verifiers", spec)
        except Exception as error:  # other people's plug-in
            if specs and (isinstance(error, UsageError) or spec.path is not None):
                raise
            found.append(Pairing(spec, "", ""))
            continue
        promises = verifier.guarantee is not Guarantee.LOSSY
        moved = promises and (deep or bool(specs) or spec.name == WITNESS)
        found += [
            Pairing(spec, kind.name, name, deep)
            for kind in drafters
            for name in names
            if (deep or named or (kind.rule in (None, spec.name) and is_apt(verifier, spec, kind)))
            and (name == CONSTANT or (moved and kind.name in (named or {ASKING})))
        ]
    return found


def is_apt(verifier: Verifier, spec: Spec, kind: DraftKind) -> bool:
    """Whether a kind of draft may show something of a rule that no smaller kind does.

    Wide trees only of a rule that looks at the laws of siblings, and takes them so drawn.
    """
    if not kind.wide or kind.how is None:
        return True
    if spec.name in BLIND or verifier.guarantee is Guarantee.LOSSY:
        return False
    try:
        return verifier.refuses(kind.how, True) is None
    except Exception:  # another package's; its row says so
        return True


def compatibility(specs: Sequence[Spec] = ()) -> Iterator[RuleRow]:
    """The table, a row at a time; of all verifiers, or of those in `specs`.

    Raises:
        UsageError: no such verifier, or one with other arguments.
    """
    return (row_of(each) for each in pairings(specs))


def row_of(each: Pairing) -> RuleRow:
    """Enumerate one pairing by its names."""
    known = names_of(each)
    try:
        verifier: Verifier = make("verifiers", each.verifier)
    except Exception as error:  # other people's plug-in
        return failed(known, error)
    kind = STAND_INS.get(each.drafter) or kind_of(Spec.parse(each.drafter))
    schedule = partial(made_schedule, each.schedule)
    return pairing(known["verifier"], verifier, kind, each.schedule, schedule, deep=each.deep)


Told = Callable[[Pairing, RuleRow], None]
"""Called for each row as it comes, in no order."""


def rows_of(
    pairings: Sequence[Pairing],
    workers: int,
    told: Told,
    begun: Callable[[Pairing], None] = lambda each: None,
) -> list[RuleRow]:
    """Return the rows of `pairings` in their order, from `workers` other processes, or this one.

    Args:
        told: is called with each row as it comes, in no order.
        begun: is called with each pairing before its enumeration.
    """
    rows: dict[int, RuleRow] = {}

    def take(unit: tuple[int, Pairing], row: RuleRow) -> None:
        rows[unit[0]] = row
        told(unit[1], row)

    def give_up(unit: tuple[int, Pairing], error: str) -> None:
        take(unit, failed(names_of(unit[1]), ChildProcessError(error)))

    waiting = []
    for unit in enumerate(pairings):
        if workers > 1 and not needs_no_table(unit[1]):
            waiting.append(unit)
        else:  # the drafter's modules are imported here alone
            if workers == 1:
                begun(unit[1])
            take(unit, row_of(unit[1]))

    def handed_out() -> Iterator[tuple[int, Pairing]]:
        for unit in waiting:
            begun(unit[1])
            yield unit

    if waiting:
        crew = Workers(on=f"processes:{min(workers, len(waiting))}")
        map_units(crew, Enumeration(), handed_out(), take=take, give_up=give_up, losses=1)
    return [rows[index] for index in range(len(pairings))]


@dataclass(frozen=True)
class Enumeration:
    """The work of another process: the row of a pairing."""

    threads: int = 1
    beside: int = 1

    def prepare(self) -> None:
        """Leave the other cores to the other processes."""
        torch.set_num_threads(1)

    def __call__(self, unit: tuple[int, Pairing]) -> RuleRow:
        """Enumerate it."""
        return row_of(unit[1])


def names_of(each: Pairing) -> dict[str, Any]:
    """Return the names of a pairing, as its row has them."""
    return {"verifier": str(each.verifier), "drafter": each.drafter, "schedule": each.schedule}


def needs_no_table(each: Pairing) -> bool:
    """Whether a pairing is left out by what its drafter says of itself: nothing is to be walked."""
    if not each.drafter or each.drafter in STAND_INS:
        return False
    plan = plan_of(Spec.parse(each.drafter))
    return plan.target or plan.weights not in (Weights.NONE, Weights.MODEL)


def drafter_kinds(*, deep: bool = False) -> Iterator[DraftKind]:
    """The drafters of the registry, and one of each kind that it may lack; with `deep` more."""
    for entry in entries("drafters"):
        yield from kinds_of(Spec(entry.name))
    yield from (*REFERENCE, *DEEP_KINDS) if deep else REFERENCE


def kinds_of(spec: Spec) -> Iterator[DraftKind]:
    """The kinds that a drafter stands for: itself, or smaller ones of one without arguments.

    Raises:
        UsageError: no such drafter, or arguments that it refuses.
    """
    small = () if spec.args else SMALL.get(spec.name, ())
    yield from map(kind_of, map(Spec.parse, small)) if small else (kind_of(spec),)


def kind_of(spec: Spec) -> DraftKind:
    """A drafter by its spec."""
    plan = plan_of(spec)
    every = not is_ours("drafters", spec) or spec.name in COMMON
    upto = UPTO_OF_TREES if plan.tree and plan.drawn is not Drawn.POINT else MOST
    return DraftKind(
        str(spec),
        partial(open_over, drafter=spec),
        cells_of(spec) if is_ours("drafters", spec) else None,
        rule=None if every else usual(plan),
        upto=upto,
        how=plan.drawn if plan.tree else None,
    )


def cells_of(drafter: Spec) -> Callable[[Facts, int], list[float]]:
    """Where the decisions of a drafter change: those of a chain, or of the tree that it draws."""
    try:
        made = open_over(TableLM(SETTINGS[0][1].p, SETTINGS[0][1].vocab), drafter)
    except Exception:  # one without a table: left out with the reason
        return Facts.drawn
    shape = getattr(made, "shape", None)
    return Facts.drawn if shape is None else TreeDrawn(shape, made.drawn)


def schedules() -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """Every schedule of the registry, those of ours that stop with a threshold that stops here."""
    for entry in entries("schedules"):
        name = STOPPING.get(entry.name, entry.name)
        yield name, partial(made_schedule, name)


def made_schedule(name: str) -> Schedule:
    """The schedule of a spec as text; the constant one with the K of whole texts.

    Raises:
        UsageError: no such schedule, or one with other arguments.
    """
    if name == CONSTANT:  # the one that an option of its own, --k, stands for
        return Constant(LOOKAHEAD)
    schedule: Schedule = make("schedules", Spec.parse(name))
    return schedule


def pairing(
    name: str,
    verifier: Verifier,
    kind: DraftKind,
    schedule_name: str,
    schedule: Callable[[], Schedule],
    *,
    deep: bool = False,
) -> RuleRow:
    """Enumerate one pairing, past its refusal if it is refused."""
    known: dict[str, Any] = {"verifier": name, "drafter": kind.name, "schedule": schedule_name}
    if reason := impossible_here(kind, schedule):
        return RuleRow(**known, guarantee="", refused=None, distance=None, left_out=reason)
    refused: str | None = None
    try:
        known["guarantee"] = verifier.guarantee.value
        probe = kind.make(TableLM(SETTINGS[0][1].p, SETTINGS[0][1].vocab))
        refused = verifier.refuses(probe.drawn, probe.tree)
        subject = Subject(verifier, kind, schedule, refused, deep)
        if not kind.rounds and (n := draws(subject)) > MOST_DRAWN:
            reason = f"drafter {kind.name} draws {n} tokens a round at K = {LOOKAHEAD}"
            known |= {"refused": None, "distance": None}
            return RuleRow(**known, left_out=f"{reason}: up to {MOST_DRAWN} can be enumerated")
        return enumerated(subject, known)
    except Exception as error:  # a forced pairing may break anything, and so may a plug-in
        return failed({"guarantee": Guarantee.LOSSY.value, "refused": refused} | known, error)


def impossible_here(kind: DraftKind, schedule: Callable[[], Schedule]) -> str | None:
    """Why a pairing cannot be made where the only models are tables."""
    try:
        drafter = kind.make(TableLM(SETTINGS[0][1].p, SETTINGS[0][1].vocab))
    except Exception as error:
        return f"drafter {kind.name} cannot be made over a table: {in_words(error)}"
    if drafter.layers:
        return f"drafter {kind.name} reads hidden layers, and a table has none"
    try:
        schedule()
    except Exception as error:
        return f"the schedule cannot be made without arguments: {in_words(error)}"
    return None


class Subject(NamedTuple):
    """The parts of a pairing, and why it is refused."""

    verifier: Verifier
    kind: DraftKind
    schedule: Callable[[], Schedule]
    refused: str | None
    deep: bool = False  # every case is walked

    def case(self, pair: Pair, schedule: Schedule, prompt: tuple[int, ...], **fields: Any) -> Case:
        """A walk of it."""
        forced = self.refused is not None
        return Case(
            Forced(self.verifier) if forced else self.verifier,
            DiscoveredRule(self.verifier, self.kind.drawn),
            pair.q,
            pair.p,
            pair.vocab,
            drafter=self.kind.make,
            schedule=schedule,
            prompt=prompt,
            lm=careless if forced else None,
            **fields,
        )

    def simple(self, laws: Laws, lookahead: int) -> Case:
        """A case of one round, in which the same laws follow every text."""
        q, p = laws
        case = self.case(
            Pair(len(q)), Constant(lookahead), (0,), tokens=lookahead + 1, one_round=True
        )
        return replace(case, q=lambda text: q, p=lambda text: p)


def draws(subject: Subject) -> int:
    """How many uniforms its drafter asks for in a round of whole texts."""
    _, pair, fields = SETTINGS[0]
    case = subject.case(pair, Constant(LOOKAHEAD), PROMPT, one_round=True, **fields)
    walk = Walk(replace(case, rule=Whole()), pair.q, pair.p, [], upper=False)
    walk.run()
    return sum(purpose is Purpose.DRAFT for purpose, _ in walk.facts.picked)


class Whole(Rule):
    """One cell for each uniform."""

    def cells(self, facts: Facts, purpose: Purpose, slot: int) -> list[float]:
        """All of [0, 1)."""
        return [1.0]


def enumerated(subject: Subject, known: dict[str, Any]) -> RuleRow:
    """Enumerate whole texts in every setting, then larger K where the promise holds.

    What is refused is walked until it is shown to be wrong.
    """
    claim = subject.verifier.guarantee
    promises = subject.refused is None and claim is not Guarantee.LOSSY
    worst, where, emitted, paths, sound, lookahead = 0.0, "", None, 0, True, LOOKAHEAD
    example, reach = "", Reach()
    for setting, pair, schedule, prompt, fields in settings(subject):
        done = prove(subject.case(pair, schedule, prompt, **fields))
        reach = reach.joined(reach_in(done, pair, subject.kind.how, fields))
        emitted = done.emitted if emitted is None else emitted
        paths += done.paths
        sound = sound and done.whole
        if done.distance > worst:
            worst, where, example = done.distance, setting, counterexample(done, prompt)
        if subject.refused is not None and worst > EXACT:
            break
    further = promises and not subject.kind.rounds
    upto = MOST if subject.deep else subject.kind.upto
    small = subject.kind.how in (Drawn.IID, Drawn.DISTINCT) and not subject.deep
    rounds = one_rounds(claim, subject.schedule, upto, deep=subject.deep, small=small)
    for one, schedule in rounds if further else ():
        if worst > EXACT or not sound:
            break
        done = prove(subject.case(one.pair, schedule, one.prompt, **one.case))
        paths += done.paths
        sound = sound and done.whole
        lookahead = min(one.lookahead, upto)
        reach = reach.joined(reach_in(done, one.pair, subject.kind.how, one.fields))
        if done.distance > worst:
            worst, where = done.distance, f"one round of K = {one.lookahead}, {one.name}"
            example = counterexample(done, one.prompt)
    asked = subject.kind.drawn is None  # its cells were found, and may be others in other rounds
    return RuleRow(
        **known,
        refused=subject.refused,
        distance=worst if sound or (worst > EXACT and not asked) else None,
        worst=where,
        emitted=emitted,
        paths=paths,
        error=None if sound else "decisions elsewhere than where they were looked for",
        lookahead=lookahead,
        reach=reach,
        example=example if worst > EXACT else "",
        smallest=smallest(subject.simple) if promises and sound and worst > EXACT else (),
    )


def reach_in(done: Proof, pair: Pair, how: Drawn | None, fields: Mapping[str, Any]) -> Reach:
    """How large the drafts of a case were; greedy ones have one value, and show no law."""
    if fields.get("warp") == ALONE["warp"]:
        return Reach()
    return reach_of(done.shapes, pair.vocab, how)


def settings(
    subject: Subject,
) -> Iterator[tuple[str, Pair, Schedule, tuple[int, ...], dict[str, Any]]]:
    """Name, laws, schedule, prompt and the rest of what is walked first.

    Whole texts; of a drafter with rounds of its own, these.
    """
    greedy = subject.verifier.guarantee is Guarantee.GREEDY
    for one in subject.kind.rounds:
        if not greedy or one.fields == ALONE:
            yield one.name, one.pair, Constant(one.lookahead), one.prompt, one.case
    if not subject.kind.rounds:
        every = (*SETTINGS, *(LONGER if subject.deep else ()))
        for name, pair, fields in GREEDY if greedy else every:
            yield name, pair, subject.schedule(), PROMPT, fields


@dataclass(frozen=True, slots=True)
class Forced:
    """A verifier that refuses nothing."""

    verifier: Verifier
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    @property
    def __wrapped__(self) -> Verifier:
        """Whose faults are named."""
        return self.verifier

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Nothing."""
        return None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """As it is."""
        return self.verifier(draft, q, noise)


def careless(case: Case, text: list[int], target: bool) -> LM:
    """A session that keeps whatever the verifier says, for what should have been refused."""
    return TableLM(case.q if target else case.p, case.vocab, careless=True)


def failed(known: dict[str, Any], error: Exception) -> RuleRow:
    """The row of what could not be enumerated."""
    return RuleRow(
        **{"guarantee": "", "refused": None} | known, distance=None, error=in_words(error)
    )


def in_words(error: Exception) -> str:
    """The kind of an error and its first line."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:200]}"
