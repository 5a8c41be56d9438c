"""Validation of a cell: every name, argument and pairing, before a model is loaded."""

import logging
from collections.abc import Callable
from dataclasses import asdict

from spsbench.errors import UsageError
from spsbench.loop.decoder import Decoder
from spsbench.loop.drafter_context import Drawn, Plan, Weights
from spsbench.loop.guards import plan_of as plan_of
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Guarantee
from spsbench.methods.round_costs import asks_for_costs, with_costs
from spsbench.models.translation.vocabulary import Vocabularies
from spsbench.plugins import arguments, in_name_of, make, plug_in
from spsbench.settings.cell import AUTO, ENGINES_OWN, OWN_LOOP, Cell
from spsbench.settings.cell_from_options import draft_of
from spsbench.settings.constraint import check as check_sampling
from spsbench.settings.constraint import kind_of
from spsbench.settings.models import DEFAULT_DRAFT
from spsbench.spec import Spec

log = logging.getLogger(__name__)
LARGE = 0.5  # share of a sample text's tokens that both have
MODEL, SHARED, STRINGS = Spec("model"), Spec("tli"), Spec("slem")


def resolve(cell: Cell) -> Cell:
    """Check every name, argument and pairing of `cell` before a model is loaded.

    An `auto` verifier becomes sps for sampled chains, traversal for sampled trees and match for
    drafts that come by rule. A schedule's `costs=here` become numbers. A drafter over a draft model
    gets the one that comes with a bundled target, where none is named: of a plug-in only its plan
    says that it takes one.
    """
    decoder = plug_in("decoders", cell.decoder)
    arguments("decoders", cell.decoder, decoder)
    check_constraint(cell)
    if not decoder.loads:
        return elsewhere(cell, decoder)
    decoder.check(cell)
    by_clock = asks_for_costs(cell)
    cell = with_costs(cell)
    for model, field in zip(cell.models, ("`weights`", "`draft_weights`"), strict=False):
        if model.served:
            raise UsageError(
                f"{field} {model.weights} with `decoder` {cell.decoder}: expected a decoder "
                "whose engine has the weights. See them with `sps list decoders`"
            )
    plan = plan_of(cell.drafter)
    if cell.verifier.name == "auto":
        cell = cell.but(verifier=Spec(usual(plan)))
    if plan.weights is Weights.MODEL and cell.draft is None:
        cell = with_bundled(cell)
    verifier = make("verifiers", cell.verifier)
    with in_name_of("verifiers", cell.verifier):
        cell = cell.but(guarantee=Guarantee(verifier.guarantee).value)
    if reason := verifier.refuses(plan.drawn, plan.tree):
        raise UsageError(f"`drafter` {cell.drafter} with `verifier` {cell.verifier}: {reason}")
    check_draft(cell, plan)
    schedule = make("schedules", cell.schedule)
    if cell.ranks > 1 and (by_clock or getattr(schedule, "by_clock", False)):
        raise UsageError(
            f"`schedule` {cell.schedule} with several ranks: expected one that reads no clock, "
            "by which ranks would part. Give it its costs as numbers"
        )
    for model in cell.models:
        make("engines", model.engine)
    if decoder.rules is not None:
        check_rules(cell, decoder)
    try:
        Warp(**asdict(cell.warp))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return cell


def check_constraint(cell: Cell) -> None:
    """Refuse a constraint that nothing can follow, or that this cell cannot apply."""
    kind = kind_of(cell)
    if kind is None:
        return
    if cell.decoder.name not in (OWN_LOOP, "openai"):
        raise UsageError(
            f"`{kind}` with `decoder` {cell.decoder}: expected native or openai, which "
            "mask tokens. Leave one out"
        )
    if cell.ranks > 1:
        raise UsageError(f"`{kind}` with several ranks: expected one. Leave one out")
    check_sampling(cell)


def elsewhere(cell: Cell, decoder: type[Decoder]) -> Cell:
    """Check a cell whose engine is elsewhere: its arguments, and that it drafts as it is set up."""
    if cell.drafter.name not in (ENGINES_OWN.name, "none") or cell.verifier != AUTO:
        raise UsageError(
            f"`decoder` {cell.decoder} with `drafter` {cell.drafter}, `verifier` "
            f"{cell.verifier}: expected neither, since the engine drafts as it is set up"
        )
    decoder.check(cell)
    Warp(**asdict(cell.warp))
    return cell


def check_weights(cell: Cell, what: str) -> None:
    """Refuse a cell whose models another engine has."""
    if cell.elsewhere:
        raise UsageError(
            f"{what} with `decoder` {cell.decoder.name}: expected the weights here. Use "
            "`decoder` native"
        )


def resolve_pair(cell: Cell, vocabularies: Callable[[Cell], Vocabularies | None]) -> Cell:
    """Resolve the cell; a draft model with another vocabulary drafts by tokens or by strings.

    By shared tokens where the cell samples and they are many, else by strings. A requested verifier
    that cannot follow a draft by strings selects shared tokens.
    """
    resolved = resolve(cell)
    decoder = plug_in("decoders", cell.decoder)
    if resolved.drafter != MODEL or decoder.rules is not None:
        return resolved
    both = vocabularies(resolved)
    if both is None:
        return resolved
    named = cell.verifier
    needs_probs = named != AUTO and make("verifiers", named).refuses(Drawn.POINT, False) is not None
    sampled = resolved.temperature > 0
    shared = needs_probs or (sampled and both.overlap.text >= LARGE)
    drafter = SHARED if shared else STRINGS
    ways = {SHARED: "by the tokens that both models have", STRINGS: "by strings"}
    other = STRINGS if shared else SHARED
    log.info(
        f"note: drafting {ways[drafter]} (`drafter` {drafter}); {ways[other]}: `drafter` {other}"
    )
    return resolve(cell.but(drafter=drafter))


def usual(plan: Plan) -> str:
    """Return the verifier for a plan where none is named."""
    if plan.tree:
        return "match" if plan.drawn is Drawn.POINT else "traversal"
    return "sps" if plan.drawn is Drawn.IID else "match"


def with_bundled(cell: Cell) -> Cell:
    """Add to `cell` the draft model that is bundled with its target, if there is one."""
    target = cell.target
    draft = DEFAULT_DRAFT.get(target.id)
    return cell if draft is None else cell.but(draft=draft_of({}, draft, target))


def check_draft(cell: Cell, plan: Plan) -> None:
    """Refuse a draft model without a use, and a missing one that the drafter needs."""
    drafter, draft = cell.drafter, cell.draft
    if draft is None and plan.weights is not Weights.NONE:
        raise UsageError(f"`drafter` {drafter}: expected a draft model. Name it with `draft`")
    if draft is not None and plan.weights is Weights.NONE:
        raise UsageError(
            f"`draft` {draft.id} with `drafter` {drafter}: that drafter uses no model. "
            "Leave out one of the two"
        )


def check_rules(cell: Cell, decoder: type[Decoder]) -> None:
    """Refuse verifiers that a decoder of another library does not have."""
    rules = decoder.rules or {}
    if rules.get(cell.drafter.name) == str(cell.verifier) and cell.k is not None:
        return
    raise UsageError(
        f"`decoder` {cell.decoder} with `drafter` {cell.drafter}, "
        f"`verifier` {cell.verifier}, `schedule` {cell.schedule}: that decoder has rules of "
        "its own. Expected drafter model with verifier sps or ngram with match, and a constant K"
    )


def warp(cell: Cell) -> Warp:
    """Return the warp of `cell`, as the target's engine makes probs."""
    engine = make("engines", cell.target.engine)
    kind: type[Warp] = getattr(engine, "warp", Warp)
    return kind(**asdict(cell.warp))
