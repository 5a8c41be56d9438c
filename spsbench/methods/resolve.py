"""From a request to a cell: every name, argument and pairing, before a model is loaded."""

import logging
from collections.abc import Callable, Iterable
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
from spsbench.settings.cell import AUTO, ENGINES_OWN, OWN_LOOP, Cell, CellRequest, Configuration
from spsbench.settings.cell_from_options import draft_model
from spsbench.settings.constraint import check_constraint as check_sampling
from spsbench.settings.constraint import constraint_kind
from spsbench.settings.labels import method
from spsbench.settings.models import DEFAULT_DRAFT, ModelSpec
from spsbench.settings.processors import OF_ANSWER, PROCESSORS
from spsbench.spec import Spec

log = logging.getLogger(__name__)
LARGE = 0.5  # share of a sample text's tokens that both have
LACKED_BY_HF = ("frequency_penalty", "presence_penalty")
MODEL, SHARED, STRINGS = Spec("model"), Spec("tli"), Spec("slem")
Resolver = Callable[[CellRequest], Cell]


def resolve(
    request: CellRequest, vocabularies: Callable[[Cell], Vocabularies | None] = lambda cell: None
) -> Cell:
    """Check every name, argument and pairing of a request, and return its cell. No model is loaded.

    An `auto` verifier becomes sps for sampled chains, traversal for sampled trees and match for
    deterministic drafts; the guarantee is that of its class. A schedule's `costs=here` become
    numbers. A drafter over a draft model gets the one that comes with a bundled target, where none
    is named. Where its vocabulary differs from the target's, drafter `model` becomes one that
    drafts by shared tokens or by strings, with a note. Of an engine elsewhere only options and
    decoder are checked.

    Args:
        vocabularies: returns the vocabularies of target and draft model where they differ, else
            None; called last, for drafter `model` with a decoder that has no rules of its own.

    Raises:
        UsageError: what is requested is unknown, out of range, or does not go together.
        PlugInError: a plug-in that is not what its kind must be.
    """
    decoder = plug_in("decoders", request.decoder)
    arguments("decoders", request.decoder, decoder)
    check_constraint(request)
    check_processors(request)
    if request.elsewhere:
        return resolve_elsewhere(request, decoder)
    decoder.check(request)
    for model, field in zip(request.models, ("`weights`", "`draft_weights`"), strict=False):
        if model.served:
            raise UsageError(
                f"{field} {model.weights} with `decoder` {request.decoder}: expected a decoder "
                "whose engine has the weights. See them with `sps list decoders`"
            )
    plan = plan_of(request.drafter)
    rule = Spec(usual_rule(plan)) if request.verifier == AUTO else request.verifier
    verifier = make("verifiers", rule)
    with in_name_of("verifiers", rule):
        guarantee = Guarantee(verifier.guarantee).value
    draft = bundled_draft(request) if plan.weights is Weights.MODEL else request.draft
    cell = Cell.from_request(with_costs(request), draft=draft, verifier=rule, guarantee=guarantee)
    if reason := verifier.refuses(plan.drawn, plan.tree):
        raise UsageError(f"`drafter` {cell.drafter} with `verifier` {cell.verifier}: {reason}")
    check_draft_use(cell, plan)
    schedule = make("schedules", cell.schedule)
    by_clock = asks_for_costs(request) or getattr(schedule, "by_clock", False)
    if cell.ranks > 1 and by_clock:
        raise UsageError(
            f"`schedule` {cell.schedule} with several ranks: expected one that reads no clock, "
            "by which ranks would part. Give it its costs as numbers"
        )
    for model in cell.models:
        make("engines", model.engine)
    if decoder.rules is not None:
        check_rules(cell, decoder)
    check_warp(cell)
    both = vocabularies(cell) if cell.drafter == MODEL and decoder.rules is None else None
    return cell if both is None else resolve(with_translation(request, both))


def resolve_valid(requests: Iterable[CellRequest], resolver: Resolver = resolve) -> list[Cell]:
    """Return the distinct cells (by id) of the requests that `resolver` accepts, in order.

    Logs each reason for which others are left out, with their methods. Raises UsageError with the
    first reason where a request was refused and no accepted cell drafts.
    """
    cells: dict[str, Cell] = {}
    refused: dict[str, list[str]] = {}  # reason -> methods
    for request in requests:
        try:
            cell = resolver(request)
            cells.setdefault(cell.id, cell)
        except UsageError as error:
            refused.setdefault(str(error), []).append(method(request))
    if refused and not any(cell.k != 0 for cell in cells.values()):
        raise UsageError(next(iter(refused)))
    for reason, methods in refused.items():
        log.info(f"note: left out {', '.join(dict.fromkeys(methods))}: {reason}")
    return list(cells.values())


def check_warp(configuration: Configuration) -> None:
    """Raise UsageError where sampling is out of range, as a file of traces may have it."""
    try:
        Warp(**asdict(configuration.warp))
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_constraint(cell: CellRequest) -> None:
    """Raise UsageError for a constraint that decoder, ranks or sampling do not allow.

    It takes native or openai, one rank, no `stop` or `ignore_eos`. DataError: no text follows it.
    """
    if (kind := constraint_kind(cell)) is None:
        return
    if cell.decoder.name not in (OWN_LOOP, "openai"):
        raise UsageError(
            f"`{kind}` with `decoder` {cell.decoder}: expected native or openai, which "
            "mask tokens. Leave one out"
        )
    if cell.ranks > 1:
        raise UsageError(f"`{kind}` with several ranks: expected one. Leave one out")
    check_sampling(cell)


def check_processors(request: CellRequest) -> None:
    """Raise UsageError for logits processors that the decoder lacks, or that no text can follow.

    Native has all; hf lacks the frequency and presence penalties and a repetition penalty of the
    answer alone; other decoders have none. `min_new_tokens` must not exceed `max_new_tokens`.
    """
    if request.min_new_tokens > request.max_new_tokens:
        raise UsageError(
            f"`min_new_tokens` {request.min_new_tokens} with `max_new_tokens` "
            f"{request.max_new_tokens}: expected no more than those. Lower it"
        )
    decoder, penalty = request.decoder, request.repetition_penalty
    lacked = {"hf": LACKED_BY_HF, OWN_LOOP: ()}.get(decoder.name, PROCESSORS)
    for name in request.changed_distribution.keys() & {*lacked}:
        raise UsageError(
            f"`{name}` with `decoder` {decoder.name}: expected native, since that engine has none "
            "of the same meaning. Leave one out"
        )
    if decoder.name == "hf" and penalty.endswith(OF_ANSWER):
        raise UsageError(
            f"`repetition_penalty` {penalty} with `decoder` hf: expected one of prompt and answer, "
            "as transformers counts. Leave the scope out"
        )


def resolve_elsewhere(request: CellRequest, decoder: type[Decoder]) -> Cell:
    """Return the cell of an engine elsewhere, without a look at any model.

    UsageError: it names a drafter or verifier, the decoder refuses it, or sampling is out of range.
    """
    if request.drafter.name not in (ENGINES_OWN.name, "none") or request.verifier != AUTO:
        raise UsageError(
            f"`decoder` {request.decoder} with `drafter` {request.drafter}, `verifier` "
            f"{request.verifier}: expected neither, since the engine drafts as it is set up"
        )
    decoder.check(request)
    check_warp(request)
    return Cell.from_request(request)


def check_weights(cell: Cell, what: str) -> None:
    """Raise UsageError for a cell whose models another engine has; `what` needs them here."""
    if cell.elsewhere:
        raise UsageError(
            f"{what} with `decoder` {cell.decoder.name}: expected the weights here. Use "
            "`decoder` native"
        )


def with_translation(request: CellRequest, both: Vocabularies) -> CellRequest:
    """Return the request with drafter `tli` (shared tokens) or `slem` (strings), and log which.

    It is `tli` where the requested verifier refuses deterministic chains, which strings give, or
    where the cell samples and the vocabularies share at least `LARGE` of a text's tokens.
    """
    named = request.verifier
    needs_probs = named != AUTO and make("verifiers", named).refuses(Drawn.POINT, False) is not None
    shared = needs_probs or (request.temperature > 0 and both.overlap.text >= LARGE)
    drafter, other = (SHARED, STRINGS) if shared else (STRINGS, SHARED)
    ways = {SHARED: "by the tokens that both models have", STRINGS: "by strings"}
    log.info(
        f"note: drafting {ways[drafter]} (`drafter` {drafter}); {ways[other]}: `drafter` {other}"
    )
    return request.but(drafter=drafter)


def usual_rule(plan: Plan) -> str:
    """Return the name of the verifier for a plan where none is named."""
    if plan.tree:
        return "match" if plan.drawn is Drawn.POINT else "traversal"
    return "sps" if plan.drawn is Drawn.IID else "match"


def bundled_draft(request: CellRequest) -> ModelSpec | None:
    """Return the draft model; where none is named, the one that is bundled with the target."""
    name = DEFAULT_DRAFT.get(request.target.id)
    if request.draft is not None or name is None:
        return request.draft
    return draft_model({}, name, request.target)


def check_draft_use(cell: Cell, plan: Plan) -> None:
    """Raise UsageError for a draft model without a use, or a missing one that the drafter needs."""
    drafter, draft = cell.drafter, cell.draft
    if draft is None and plan.weights is not Weights.NONE:
        raise UsageError(f"`drafter` {drafter}: expected a draft model. Name it with `draft`")
    if draft is not None and plan.weights is Weights.NONE:
        raise UsageError(
            f"`draft` {draft.id} with `drafter` {drafter}: that drafter uses no model. "
            "Leave out one of the two"
        )


def check_rules(cell: Cell, decoder: type[Decoder]) -> None:
    """Raise UsageError unless `decoder.rules` has drafter with verifier, and K is constant."""
    rules = decoder.rules or {}
    if rules.get(cell.drafter.name) == str(cell.verifier) and cell.k is not None:
        return
    raise UsageError(
        f"`decoder` {cell.decoder} with `drafter` {cell.drafter}, "
        f"`verifier` {cell.verifier}, `schedule` {cell.schedule}: that decoder has rules of "
        "its own. Expected drafter model with verifier sps or ngram with match, and a constant K"
    )


def warp_of(cell: Cell) -> Warp:
    """Return the cell's warp, of the class that the target's engine names, else `Warp`."""
    engine = make("engines", cell.target.engine)
    kind: type[Warp] = getattr(engine, "warp", Warp)
    return kind(**asdict(cell.warp))
