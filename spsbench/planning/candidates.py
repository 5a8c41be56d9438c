"""The candidates of a plan: each combination of drafter, draft, rule, K and schedule."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Drawn, Weights
from spsbench.loop.types import Guarantee, Round
from spsbench.methods.resolve import Resolver, plan_of, resolve, resolve_valid
from spsbench.planning.forecast.rounds import RULES, Acceptances, Ints, Rounds, simulate_rounds
from spsbench.plugins import make, plug_in
from spsbench.settings.cell import AUTO, Cell
from spsbench.settings.cell_from_options import TARGET, fill, inner_drafters, own_copy
from spsbench.settings.commands import LISTS
from spsbench.settings.method import Drafting
from spsbench.settings.models import DEFAULT_DRAFT, DEFAULT_DRAFTER, DEFAULT_HEAD
from spsbench.spec import Spec

FIRST = ("model", "ngram", "suffix")  # compared where no drafter is named
SAMPLED = ("sps", "block")  # rules for a chain that is sampled from a distribution


def candidate_cells(
    options: Mapping[str, Any],
    ks: Iterable[int],
    *,
    resolver: Resolver = resolve,
    heads: Mapping[str, str] = MappingProxyType({}),
) -> list[Cell]:
    """Return a resolved cell for each valid candidate, in the order of `methods_of`, each by K.

    Each method is combined with `ks`, then with the schedules of `options`; one without a drafter
    (the target's default) comes once, at its own K. Invalid requests are left out, with a log note.
    `options` are those of cells, where the names of `LISTS` have lists; `resolver` makes a cell of
    a request; `heads` maps the drafts that are heads to their drafters. Raises UsageError where no
    candidate is valid, or as `methods_of`.
    """
    depths: list[dict[str, Any]] = [{"k": k} for k in ks]
    depths += [{"schedule": schedule} for schedule in options.get("schedule") or ()]
    requests = (
        fill({**base, **depth})
        for base in methods_of(options, heads)
        for depth in (depths if "drafter" in base else [{}])
    )
    if cells := resolve_valid(requests, resolver):
        return cells
    raise UsageError("nothing to compare: expected a drafter")


def methods_of(options: Mapping[str, Any], heads: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the options of each combination of drafter, draft and rule, without K and schedule.

    Each has `drafter`, `verifier` and what `options` has besides lists; `draft_...` only where it
    has a `draft`. Unnamed drafters are `FIRST` (`model` only with a draft model), unnamed drafts
    those that the target brings; with neither named, one without `drafter` and `verifier` comes
    first if the target has a default. A draft model that no named drafter reads is combined with
    `model`, as is a copy of the target (`self:int4`); a draft in `heads` with its own drafter
    alone. Rules are those of `verifier`, else `SAMPLED` for sampled chains and `auto` for others.
    UsageError: a drafter without its draft, or a lossy rule.
    """
    named: list[Spec] = [*(options.get("drafter") or ())]
    if copies := [copy for spec in named if (copy := own_copy(spec))]:
        other_specs = [spec for spec in named if not own_copy(spec)]
        if other_specs or options.get("draft"):
            yield from methods_of({**options, "drafter": other_specs or [Spec("model")]}, heads)
        yield from methods_of({**options, "draft": copies, "drafter": [Spec("model")]}, {})
        return
    base = {n: v for n, v in options.items() if n not in LISTS and v is not None}
    drafts = list(options.get("draft") or ())
    usual: list[Spec] = []
    if not drafts:
        target = base.get("target", TARGET["id"].default)
        if not named and target in DEFAULT_DRAFTER:
            usual = [Spec.parse(DEFAULT_DRAFTER[target][0])]
            yield base  # as sps drafts for it where nothing is named
        model = DEFAULT_DRAFT.get(target)
        needs_model = not named or any(plan_of(spec).weights is Weights.MODEL for spec in named)
        parts = [part.name for spec in named or usual for part in inner_drafters(spec)]
        bundled = {DEFAULT_HEAD.get((target, name), ""): name for name in parts}
        heads = {head: family for head, family in bundled.items() if head}
        drafts = [*([model] if model and needs_model else []), *heads]
    models = [draft for draft in drafts if draft not in heads]
    drafters = named or [Spec(name) for name in FIRST if models or name != "model"]
    if models and not {plan_of(spec).weights for spec in drafters} & {Weights.MODEL, Weights.OWN}:
        drafters.insert(0, Spec("model"))
    drafter_names = {spec.name for spec in drafters}
    drafters += [Spec(name) for name in dict.fromkeys(heads.values()) if name not in drafter_names]
    plain = {n: v for n, v in base.items() if not n.startswith("draft_")}
    for spec in drafters:
        plan = plan_of(spec)
        names, reads = [p.name for p in inner_drafters(spec)], plan.weights is not Weights.HEAD
        taken: list[str | None] = [
            draft for draft in drafts if (heads[draft] in names if draft in heads else reads)
        ]
        taken = [None] if plan.weights is Weights.NONE else taken
        if not taken:
            raise UsageError(f"`drafter` {spec}: expected a draft model. Name it with `draft`")
        chain = plan.drawn is Drawn.IID and not plan.tree
        rules = options.get("verifier") or ([*map(Spec, SAMPLED)] if chain else [AUTO])
        for draft, rule in product(taken, rules):
            if rule != AUTO and plug_in("verifiers", rule).guarantee is Guarantee.LOSSY:
                raise UsageError(
                    f"`verifier` {rule} is lossy: expected an exact rule, whose text is the "
                    "target's own. Measure it with sps bench"
                )
            way_options = plain if draft is None else {**base, "draft": draft}
            yield {**way_options, "drafter": spec, "verifier": rule}


def simulate(schedule: Spec, along: Acceptances, room: Ints, simulations: int) -> Rounds:
    """Return the rounds under a schedule that looks back, from so many simulated generations."""
    return simulate_rounds(make("schedules", schedule), Round, along, room, simulations)


def replayable(cell: Cell) -> bool:
    """Return whether a plan can replay a cell's rule, in our own loop; else it is only measured."""
    return str(cell.verifier) in RULES and cell.own_loop


def sampled_traces(cells: Iterable[Cell]) -> list[str]:
    """Return labels (`str(Drafting)`) of sampled chains, each once, in order; no trees, no head."""
    names: list[str] = []
    for cell in cells:
        plan = plan_of(cell.drafter)
        if plan.drawn is Drawn.IID and not plan.tree and plan.weights is not Weights.HEAD:
            names.append(str(Drafting.of(cell)))
    return list(dict.fromkeys(names))
