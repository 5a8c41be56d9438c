"""The pairings of the compatibility table: each verifier, with which drafters and schedules.

Every plug-in of the registry takes part, built-in or of another package. `pairings` lists what is
enumerated; `draft_kind_of` and `made_schedule` make the parts of one pairing from their names.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from spsbench.audit.exact.cases import LOOKAHEAD, MAX_K, Facts
from spsbench.audit.exact.draft_kinds import DEEP_KINDS, REFERENCE, DraftKind, tree_cells
from spsbench.audit.exact.tables import TableLM, ToyPair, open_over
from spsbench.errors import UsageError
from spsbench.loop.types import LM, Drafter, Drawn, Guarantee, Schedule, Verifier
from spsbench.methods.resolve import plan_of, usual_rule
from spsbench.methods.schedules.by_history import Constant
from spsbench.plugins import is_ours, make
from spsbench.registry import entries
from spsbench.settings.cell import CONSTANT
from spsbench.spec import Spec

ASKING = "model"  # the drafter that queries a schedule before each of its tokens

STOPPING = {  # over two tokens, never flat, the default thresholds would hardly ever stop
    "confidence": "confidence:t=0.6",
    "entropy": "entropy:t=0.65,step=0.05",
    "disco": "disco:t=0.7",
}

TIMELESS = {"utility": "utility:test=1,hold=1,start=2,draft=0.1"}
"""Costs in the place of the clock, so that a text has one K, and phases within a few rounds."""

SMALL = {  # shapes of trees where the default has too many paths, for every way to draw
    "tree": ("tree:shape=2x2", "tree:shape=2x1,siblings=iid", "tree:shape=2x1,siblings=distinct"),
    "topk": ("topk:width=2,nodes=5",),
    "sequoia": ("sequoia:nodes=3,siblings=distinct",),
    "chains": ("chains:n=2",),
}

STAND_INS = {kind.name: kind for kind in (*REFERENCE, *DEEP_KINDS)}

COMMON = frozenset({"model", "ngram", "none"})
"""Drafters that every rule is walked with.

The other built-in drafters draw like one of these or of `REFERENCE`, so that one rule suffices to
show that their reported distributions are right.
"""

WITNESS = "sps"  # the rule that every schedule is walked with: `match` would be exact with any

BLIND = frozenset({"match"})  # rules that use no draft's distribution, nor a third sibling's

UPTO_OF_TREES = 3  # K of single rounds: two chains of 6 tokens have 4,096 drafts

PROBED = ToyPair(2, 3, ("plain",))


class RulePairing(NamedTuple):
    """A pairing to enumerate, by names, so that another process can receive it."""

    verifier: Spec
    drafter: str  # none, like the schedule, if the verifier cannot be made
    schedule: str  # a spec as text
    deep: bool = False  # with every case


def pairings(
    specs: Sequence[Spec] = (),
    only: Sequence[Spec] = (),
    drafts: Sequence[Spec] = (),
    *,
    deep: bool = False,
) -> list[RulePairing]:
    """Return pairings in the order of the table: those of verifiers in `specs`; empty: all.

    Schedules are those in `only`, if empty all. The constant one is paired with everything, others
    with rules that have a guarantee (without `specs` or `deep`, `WITNESS` alone), and with the
    drafter that queries the schedule before every token. Drafters in `drafts` replace all others,
    and are paired with every rule and schedule. `deep` adds larger trees, each drafter with every
    rule, and each rule with every schedule. A rule that cannot be made has one pairing without
    names; named plug-ins raise UsageError.
    """
    drafters = [kind for spec in drafts for kind in kinds_of(spec)]
    named = {kind.name for kind in drafters}
    drafters = drafters or list(drafter_kinds(deep=deep))
    for spec in only:
        made_schedule(str(spec))
    names = [str(spec) for spec in only] or schedules()
    listed: list[RulePairing] = []
    for spec in specs or [Spec(entry.name) for entry in entries("verifiers")]:
        try:
            verifier: Verifier = make("verifiers", spec)
        except Exception as error:  # plug-in of another package
            if specs and (isinstance(error, UsageError) or spec.path is not None):
                raise
            listed.append(RulePairing(spec, "", ""))
            continue
        promises = verifier.guarantee is not Guarantee.LOSSY
        moved = promises and (deep or bool(specs) or spec.name == WITNESS)
        listed += [
            RulePairing(spec, kind.name, name, deep)
            for kind in drafters
            for name in names
            if (deep or named or (kind.rule in (None, spec.name) and is_apt(verifier, spec, kind)))
            and (name == CONSTANT or (moved and kind.name in (named or {ASKING})))
        ]
    return listed


def is_apt(verifier: Verifier, spec: Spec, kind: DraftKind) -> bool:
    """Return whether a kind of draft can reveal an error of a rule that no smaller kind reveals.

    Chains and narrow trees can. A wide tree can if the rule has a guarantee, uses the distributions
    of siblings, and accepts the tree's sampling or fails to say.
    """
    if not kind.wide or kind.how is None:
        return True
    if spec.name in BLIND or verifier.guarantee is Guarantee.LOSSY:
        return False
    try:
        return verifier.refuses(kind.how, True) is None
    except Exception:  # another package's; its row has the reason
        return True


def drafter_kinds(*, deep: bool = False) -> Iterator[DraftKind]:
    """Yield the drafters of the registry, and reference kinds; more with `deep`."""
    for entry in entries("drafters"):
        yield from kinds_of(Spec(entry.name))
    yield from (*REFERENCE, *DEEP_KINDS) if deep else REFERENCE


def kinds_of(spec: Spec) -> Iterator[DraftKind]:
    """Yield a drafter's kinds: itself, or of one without arguments those in `SMALL`, if any."""
    small = () if spec.args else SMALL.get(spec.name, ())
    yield from map(draft_kind_of, map(Spec.parse, small)) if small else (draft_kind_of(spec),)


def draft_kind_of(spec: Spec) -> DraftKind:
    """Return the kind of a drafter; UsageError: there is none, or it refuses the arguments."""
    plan = plan_of(spec)
    every = not is_ours("drafters", spec) or spec.name in COMMON
    return DraftKind(
        str(spec),
        partial(open_over, drafter=spec),
        decision_points(spec) if is_ours("drafters", spec) else None,
        rule=None if every else usual_rule(plan),
        upto=UPTO_OF_TREES if plan.tree and plan.drawn is not Drawn.POINT else MAX_K,
        how=plan.drawn if plan.tree else None,
    )


def made_drafter(make: Callable[[LM], Drafter]) -> Drafter:
    """Make a drafter over the table of a small draft model, to see how it drafts."""
    return make(TableLM(PROBED.p, PROBED.vocab))


def decision_points(drafter: Spec) -> Callable[[Facts, int], list[float]]:
    """Return (facts of a walk, slot) -> cell widths, from 0 up, of the uniform that drafts there.

    They are p after a node's ancestors, or a chain's if it has no `shape`, or cannot be opened.
    """
    try:
        opened = made_drafter(partial(open_over, drafter=drafter))
    except Exception:  # a drafter without a table is left out, with the reason
        return Facts.drawn
    shape = getattr(opened, "shape", None)
    return Facts.drawn if shape is None else tree_cells(shape, opened.drawn)


def schedules() -> list[str]:
    """Return every schedule; built-in ones have thresholds at which they stop on tables."""
    return [{**STOPPING, **TIMELESS}.get(entry.name, entry.name) for entry in entries("schedules")]


def made_schedule(name: str) -> Schedule:
    """Make a spec's schedule, bare `constant` with K = `LOOKAHEAD`; UsageError: it cannot be."""
    if name == CONSTANT:  # the one behind the option `k`
        return Constant(LOOKAHEAD)
    schedule: Schedule = make("schedules", Spec.parse(name))
    return schedule
