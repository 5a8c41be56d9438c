"""The compatibility table: every verifier with every kind of draft and every schedule, enumerated.

Whole texts are enumerated at K = 2, and one round at larger K (`cases.ROUNDS`). A pairing
that the loop refuses is enumerated past the refusal, to show its effect. A plug-in that cannot be
made over tables is left out, with the reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from spsbench.audit.exact.cases import (
    DEEP_ROUNDS,
    LONGER,
    LOOKAHEAD,
    MAX_K,
    ROUNDS,
    TEXTS,
    Case,
    CaseSetting,
)
from spsbench.audit.exact.counterexample import QP, counterexample, smallest
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import DraftKind
from spsbench.audit.exact.enumeration import EXACT, Walk, prove
from spsbench.audit.exact.pairings import (
    STAND_INS,
    RulePairing,
    draft_kind_of,
    made_drafter,
    made_schedule,
)
from spsbench.audit.exact.tables import ToyPair
from spsbench.loop.types import Drawn, Guarantee, Purpose, Schedule, Verifier
from spsbench.methods.schedules.by_history import Constant
from spsbench.plugins import make
from spsbench.settings.execution import Workers
from spsbench.spec import Spec
from spsbench.workers.map_units import map_units
from spsbench.workers.work import Work

MOST_DRAWN = 8  # tokens that are drawn in a round of whole texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One pairing of the compatibility table."""

    verifier: str
    drafter: str
    schedule: str
    guarantee: str  # the verifier's claim
    refused: str | None  # reason of the refusal
    distance: float | None  # the worst total variation of all settings; None: not enumerable
    worst: str = ""  # setting with the largest distance
    emitted: float | None = None  # tokens of a first round, in the first setting
    paths: int = 0
    error: str | None = None
    lookahead: int = 0  # single rounds were walked up to this K
    left_out: str | None = None  # reason why a plug-in cannot be made here
    example: str = ""  # the shortest text with a wrong probability, in the worst setting
    smallest: Sequence[str] = ()  # smallest case of a violated guarantee, in lines

    @property
    def verdict(self) -> str:
        """Return the guarantee if it holds, else `lossy`, `BIASED`, `left out` or `not shown`.

        `lossy` promises nothing. A refused one is `refused`, or `refused, though exact here`.
        """
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
        """Return whether the enumerated distribution differs from the target's."""
        return self.error is not None or (self.distance or 0.0) > EXACT


def enumerate_pairing(pair: RulePairing) -> RuleRow:
    """Return a pairing's row, failed or left out where parts fail; UsageError: no such drafter."""
    try:
        verifier: Verifier = make("verifiers", pair.verifier)
    except Exception as error:  # plug-in of another package
        return failure_row(pairing_names(pair), error)
    kind = STAND_INS.get(pair.drafter) or draft_kind_of(Spec.parse(pair.drafter))
    schedule = partial(made_schedule, pair.schedule)
    return pairing(str(pair.verifier), verifier, kind, pair.schedule, schedule, deep=pair.deep)


def enumerate_pairings(
    pairings: Sequence[RulePairing],
    workers: int,
    take_row: Callable[[RulePairing, RuleRow], None],
    begun: Callable[[RulePairing], None] = lambda pairing: None,
) -> list[RuleRow]:
    """Return the rows of `pairings` in their order; what a worker raises gives a failed row.

    It runs in `workers` other processes (SpsError: one ends); 0 or 1: in this one, which raises
    UsageError. `begun` takes each pairing before its enumeration, `take_row` pairing and row on
    completion, in any order.
    """
    rows: dict[int, RuleRow] = {}

    def take(unit: tuple[int, RulePairing], result: RuleRow | Exception) -> None:
        index, pair = unit
        if isinstance(result, Exception):
            result = failure_row(pairing_names(pair), result)
        rows[index] = result
        take_row(pair, result)

    def units() -> Iterator[tuple[int, RulePairing]]:
        for unit in enumerate(pairings):
            begun(unit[1])
            yield unit

    if workers > 1:
        processes = Workers(on=f"processes:{min(workers, len(pairings))}")
        map_units(processes, Enumeration(), units(), take)
    else:
        for unit in units():
            take(unit, enumerate_pairing(unit[1]))
    return [rows[index] for index in range(len(pairings))]


@dataclass(frozen=True, kw_only=True)
class Enumeration(Work):
    """Work of a worker process: the row of one pairing."""

    def prepare(self) -> None:
        torch.set_num_threads(1)  # the other cores are for other processes

    def __call__(self, unit: tuple[int, RulePairing]) -> RuleRow:
        return enumerate_pairing(unit[1])


def pairing_names(pair: RulePairing) -> dict[str, Any]:
    """Return the names of a pairing for its row."""
    return {"verifier": str(pair.verifier), "drafter": pair.drafter, "schedule": pair.schedule}


def pairing(
    name: str,
    verifier: Verifier,
    kind: DraftKind,
    schedule_name: str,
    schedule: Callable[[], Schedule],
    *,
    deep: bool = False,
) -> RuleRow:
    """Return the row of one pairing, enumerated past a refusal; an error gives a failed row.

    What tables cannot stand for, or draws too much in a round, is left out, with the reason.
    """
    fields: dict[str, Any] = {"verifier": name, "drafter": kind.name, "schedule": schedule_name}
    if reason := impossible_here(kind, schedule):
        return RuleRow(**fields, guarantee="", refused=None, distance=None, left_out=reason)
    refused: str | None = None
    try:
        fields["guarantee"] = verifier.guarantee.value
        probe = made_drafter(kind.make)
        refused = verifier.refuses(probe.drawn, probe.tree)
        subject = Subject(verifier, kind, schedule, refused, deep)
        if not kind.rounds and (n := count_uniforms(subject)) > MOST_DRAWN:
            reason = f"drafter {kind.name} draws {n} tokens a round at K = {LOOKAHEAD}"
            fields |= {"refused": None, "distance": None}
            return RuleRow(**fields, left_out=f"{reason}: up to {MOST_DRAWN} can be enumerated")
        return enumerate_settings(subject, fields)
    except Exception as error:  # a forced pairing or a plug-in may fail in any way
        return failure_row({"guarantee": Guarantee.LOSSY.value, "refused": refused} | fields, error)


def impossible_here(kind: DraftKind, schedule: Callable[[], Schedule]) -> str | None:
    """Return why tables cannot serve as models of a pairing, in words; None: they can."""
    try:
        drafter = made_drafter(kind.make)
    except Exception as error:
        return f"drafter {kind.name} cannot be made over a table: {summarise_error(error)}"
    if drafter.layers:
        return f"drafter {kind.name} reads hidden layers, and a table has none"
    try:
        schedule()
    except Exception as error:
        return f"the schedule cannot be made without arguments: {summarise_error(error)}"
    return None


class Subject(NamedTuple):
    """The parts of a pairing, and the reason of its refusal."""

    verifier: Verifier
    kind: DraftKind
    schedule: Callable[[], Schedule]
    refused: str | None
    deep: bool = False  # every case is walked

    def case(self, setting: CaseSetting, schedule: Schedule) -> Case:
        """Return a setting's case, forced if refused; `schedule` drafts, also in a single round."""
        return Case(
            self.verifier,
            DiscoveredRule(self.verifier, self.kind.drawn),
            setting.pair.q,
            setting.pair.p,
            setting.pair.vocab,
            drafter=self.kind.make,
            schedule=schedule,
            forced=self.refused is not None,
            prompt=setting.prompt,
            warp=setting.warp,
            processors=setting.processors,
            eos=setting.eos,
            tokens=setting.lookahead + 1 if setting.lookahead else setting.tokens,
            one_round=setting.lookahead > 0,
        )

    def simple(self, qp: QP, lookahead: int) -> Case:
        """Return the case of one round of K = `lookahead` in which q and p follow every text."""
        q, p = qp
        case = self.case(CaseSetting("", ToyPair(len(q)), lookahead, (0,)), Constant(lookahead))
        return replace(case, q=lambda text: q, p=lambda text: p)

    def settings(self) -> Iterator[tuple[CaseSetting, Schedule]]:
        """Yield each setting with its schedule: whole texts, or the kind's own rounds, first.

        Then single rounds by rising K up to `upto`: none where the kind has rounds, the rule
        promises nothing or is refused. K is the setting's under a constant schedule and in a kind's
        own rounds; another, made anew, chooses K, so of single rounds it gets those of `MAX_K`.
        A greedy rule has greedy settings only; `deep` has more, also trees of three tokens.
        """
        claim, kind = self.verifier.guarantee, self.kind
        texts = () if kind.rounds else (*TEXTS, *(LONGER if self.deep else ()))
        further = sorted((*ROUNDS, *(DEEP_ROUNDS if self.deep else ())), key=lambda s: s.lookahead)
        if kind.rounds or self.refused is not None or claim is Guarantee.LOSSY:
            further = []
        constant = isinstance(self.schedule(), Constant)
        few = kind.how in (Drawn.IID, Drawn.DISTINCT) and not self.deep
        for setting in (*kind.rounds, *texts, *further):
            k = setting.lookahead
            too_many = setting in further and (k > self.upto or (few and setting.pair.vocab > 2))
            if not setting.greedy and (too_many or claim is Guarantee.GREEDY):
                continue
            if k and (constant or kind.rounds):
                yield setting, Constant(k)
            elif k in (0, MAX_K):
                yield setting, self.schedule()

    @property
    def upto(self) -> int:
        """Return the largest K of single rounds."""
        return MAX_K if self.deep else self.kind.upto


def count_uniforms(subject: Subject) -> int:
    """Return the number of uniforms that a drafter requests in a round of K = `LOOKAHEAD`."""
    case = subject.case(TEXTS[0]._replace(lookahead=LOOKAHEAD), Constant(LOOKAHEAD))
    undivided = DiscoveredRule(subject.verifier, lambda facts, slot: [1.0])
    walk = Walk(replace(case, rule=undivided), case.q, case.p, []).run()
    return sum(purpose is Purpose.DRAFT for purpose, _ in walk.facts.picked)


def enumerate_settings(subject: Subject, names: dict[str, Any]) -> RuleRow:
    """Return the row of a pairing: whole texts in every setting, then larger K up to an error.

    A refused pairing is walked up to an error. The row has fields `names`, and the worst setting.
    """
    forced = subject.refused is not None
    promises = not forced and subject.verifier.guarantee is not Guarantee.LOSSY
    worst, where, example, emitted, paths, sound = 0.0, "", "", None, 0, True
    lookahead = LOOKAHEAD
    for setting, schedule in subject.settings():
        further = setting.lookahead > 0 and not subject.kind.rounds
        if (worst > EXACT and (forced or further)) or (further and not sound):
            break
        proof = prove(subject.case(setting, schedule))
        emitted = proof.emitted if emitted is None else emitted
        paths += proof.paths
        sound = sound and proof.whole
        lookahead = min(setting.lookahead, subject.upto) if further else lookahead
        if proof.distance > worst:
            worst, example = proof.distance, counterexample(proof, setting.prompt)
            where = f"one round of K = {setting.lookahead}, " * further + setting.name
    by_queries = subject.kind.drawn is None  # cells found by queries may differ in other rounds
    return RuleRow(
        **names,
        refused=subject.refused,
        distance=worst if sound or (worst > EXACT and not by_queries) else None,
        worst=where,
        emitted=emitted,
        paths=paths,
        error=None if sound else "decisions outside the cells that were searched",
        lookahead=lookahead,
        example=example if worst > EXACT else "",
        smallest=smallest(subject.simple) if promises and sound and worst > EXACT else (),
    )


def failure_row(fields: dict[str, Any], error: Exception) -> RuleRow:
    """Return the row of a pairing that could not be enumerated."""
    return RuleRow(
        **{"guarantee": "", "refused": None} | fields, distance=None, error=summarise_error(error)
    )


def summarise_error(error: Exception) -> str:
    """Return the kind of an error and its first line."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:300]}"
