"""Requests from options: the table of all options of cells, and `fill`.

`fill` fills in defaults and makes every check that needs neither a model nor torch.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spsbench.errors import UsageError
from spsbench.hardware.ranks import ranks
from spsbench.registry import built_in
from spsbench.settings.cell import (
    ELSEWHERE,
    ENGINES_OWN,
    METHOD_FIELDS,
    OWN_LOOP,
    SAMPLING_FIELDS,
    CellRequest,
    constant,
)
from spsbench.settings.models import (
    BLOCKS,
    CHECKPOINT,
    DEFAULT_DRAFT,
    DEFAULT_DRAFTER,
    DEFAULT_HEAD,
    HEAD_WEIGHTS,
    NOTHING,
    QUANTISED,
    RANDOM,
    SERVED,
    SHAPE,
    ModelFacts,
    ModelSpec,
    parse_shape,
)
from spsbench.settings.options import METHOD, Option, OptionSpec, between, options_of
from spsbench.settings.processors import PROCESSORS
from spsbench.spec import ALONE, K_MAX, Spec

log = logging.getLogger(__name__)

DEFAULT_K = 4
HYBRID = "hybrid"  # the drafter whose arguments name drafters
OVER_A_MODEL = frozenset({"model", "tree", "topk", "sequoia", "chains"})
"""Drafters of a draft model."""
SELF = "self:"  # before a format: the target's own copy, quantised, as a draft model
USUAL_ENGINE = ModelSpec("").engine
DEFAULT_ENGINE = USUAL_ENGINE if USUAL_ENGINE.name in built_in("engines") else Spec("eager")
"""Engine where none is named: the usual one is of an extension, which may have been taken away."""
SPECIAL_DRAFTS = " self:int8 is the target quantised."
ALWAYS_THE_TARGETS = ("trust_remote_code", "attention")
"""Fields for which a draft model has no option of its own."""


def _of_target(field: str, setting: OptionSpec) -> OptionSpec:
    option = setting.option._replace(help=setting.option.help.format(model="the target"))
    if field == "id":
        return replace(setting, name="target", option=option, default="nano")
    return replace(
        setting, option=option, default=DEFAULT_ENGINE if field == "engine" else setting.default
    )


def _of_draft(field: str, setting: OptionSpec) -> OptionSpec:
    """Return a field's setting as the draft's, `draft_FIELD`; default None: that of the target."""
    alone = {"id": "that of a bundled pair", "revision": None, "adapter": None}
    option = setting.option._replace(
        help=setting.option.help.format(model="the draft model")
        + (SPECIAL_DRAFTS if field == "id" else ""),
        default_text=alone.get(field, "the target's"),
    )
    name = "draft" if field == "id" else f"draft_{field}"
    return replace(setting, name=name, option=option, default=None)


K = OptionSpec(
    "k",
    Option(
        METHOD,
        between(0, K_MAX, f"1..{K_MAX}, or 0 for auto-regressive sampling"),
        flags=("k",),
        default_text="4",
        help="Tokens drafted per round, 1..64; 0 is auto-regressive sampling (ArS).",
    ),
    int,
)
"""Sets the constant schedule."""

_OF_MODEL = options_of(ModelSpec).items()
TARGET = {field: _of_target(field, setting) for field, setting in _OF_MODEL}
"""Field of the target's `ModelSpec` -> its setting."""
DRAFT = {f: _of_draft(f, s) for f, s in _OF_MODEL if f not in ALWAYS_THE_TARGETS}
"""Field of the draft's `ModelSpec` -> its setting."""
DRAFTING = (*(setting.name for setting in DRAFT.values()), "drafter", "verifier", "schedule")

OF_CELL: Mapping[str, OptionSpec] = {
    **{setting.name: setting for setting in (*TARGET.values(), *DRAFT.values(), K)},
    **{name: options_of(CellRequest)[name] for name in (*METHOD_FIELDS, *SAMPLING_FIELDS)},
}
"""Name -> setting, of all options of a cell."""


def fill(given: Mapping[str, Any], facts: ModelFacts = NOTHING) -> CellRequest:
    """Make the request of typed options, the others by default; UsageError: they contradict.

    A bundled target brings its draft, its heads, or a drafter with a schedule; another one without
    `draft` drafts by prompt lookup. `k` 0 is auto-regressive sampling. `k` is for the schedule
    `constant`; another names its own. `given` has values by name, also of fields of a `CellRequest`
    that are no options (`task`); `facts` is asked for the drafter of a named draft.
    """
    values = _with_default_drafter(_own_drafted(given))
    k, schedule, decoder = values.get("k"), values.get("schedule"), values.get("decoder")
    if k is not None and schedule is not None:
        raise UsageError(f"`k` {k} with `schedule` {schedule}: expected one of the two")
    if decoder is not None and decoder.name in ELSEWHERE:
        target, method = _elsewhere(values)
    else:
        drafter, draft = _drafting(values, facts)
        target = target_of(values)
        method = {
            "draft": draft_model(values, draft, target) if draft else None,
            "drafter": drafter,
            "schedule": schedule or constant(lookahead(drafter) if k is None else k),
        }
    others = {n: value for n, value in values.items() if n in CellRequest.__dataclass_fields__}
    return CellRequest(**others | method | {"target": target})


def chat_sampling(target: ModelSpec, facts: ModelFacts, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling that a chat takes from its model, by option: without what is `named`.

    `named` has options, or lists of them, by name; with temperature 0 in it only processors are
    taken. UsageError: a value of the model that an option refuses.
    """
    greedy = named.get("temperature") in (0, (0,))
    return {
        name: OF_CELL[name].convert(_usual(name, value), f"{name} (generation_config of {target})")
        for name, value in facts.sampling(target).items()
        if name not in named and (name in PROCESSORS or not greedy)
    }


def _usual(name: str, value: object) -> object:
    """Return a value in the words of options: for `top_k`, vLLM's -1 is off and 50.0 is 50."""
    if name == "top_k" and isinstance(value, float) and value.is_integer():
        value = int(value)
    return 0 if name == "top_k" and value == -1 else value


def describe_defaults(model: ModelSpec, applied: Mapping[str, Any]) -> str:
    """Return a line on the options that `chat_sampling` applied, one at least, and what wins."""
    numbers = {n: f"{v:g}" if isinstance(v, float) else str(v) for n, v in applied.items()}
    words = ", ".join(f"{name.replace('_', '-')} {number}" for name, number in numbers.items())
    fields = " and ".join(f"`{name}`" for name in applied)
    verb = "wins" if len(applied) == 1 else "win"
    return (
        f"chat: {words} from the generation_config of {model}; {fields} on the command line {verb}"
    )


def _elsewhere(values: Mapping[str, Any]) -> tuple[ModelSpec, dict[str, Any]]:
    """Return the target, and drafter and schedule by name, of an engine with its own models.

    The target is the one named, for its tokenizer, else called as the engine's model. Drafter `own`
    (`k` 0: `none`); schedule of `k`, else `own` for a server, K = 4 for others. UsageError: options
    of drafts, a `k` above 0 for a server, or a wrong address.
    """
    from spsbench.serving.address import check_address  # needed for servers only

    decoder: Spec = values["decoder"]
    args, k = dict(decoder.args), values.get("k")
    for name in ("url", "baseline"):
        if name in args:
            check_address(str(args[name]))
    names = ("draft", "drafter", "verifier", "schedule", "adapter")
    refused = [name for name in names if name in values]
    if refused or (k and "url" in args):
        name, why = f"`k` {k}", "the server sets it"
        if refused:
            name, why = f"`{refused[0]}`", "the engine drafts as it is set up"
        raise UsageError(
            f"{name} with `decoder` {decoder.name}: expected none, since {why}. Leave it out"
        )
    target = target_of(values)
    if "target" not in values:
        model = args.get("model") or args.get("path") or args.get("url", decoder.name)
        target = replace(target, id=str(model).rstrip("/").rpartition("/")[2], weights=SERVED)
    engines = "url" in args and k is None
    return target, {
        "drafter": Spec("none") if k == 0 else ENGINES_OWN,
        "schedule": ENGINES_OWN if engines else constant(DEFAULT_K if k is None else k),
    }


def own_copy(drafter: Spec | None) -> str | None:
    """Return the draft that drafter `self:int4` names, `self:int4`; None for other drafters."""
    if drafter is None or drafter.name != "self" or len(drafter.args) != 1:
        return None
    ((key, part),) = drafter.args
    return f"{SELF}{part}" if key == ALONE["self"] and part in QUANTISED else None


def _own_drafted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, a drafter `self:int4` replaced by that draft; UsageError: another draft."""
    copy = own_copy(values.get("drafter"))
    if copy is None:
        return dict(values)
    if values.get("draft", copy) != copy:
        raise UsageError(
            f"`draft` {values['draft']} with `drafter` {copy}: expected one of the two, since the "
            "target's own weights draft. Leave one out"
        )
    return {n: value for n, value in values.items() if n != "drafter"} | {"draft": copy}


def _with_default_drafter(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values`; if no method is named, with the target's default drafter.

    Its default schedule comes with it, unless `k` or `schedule` is named.
    """
    target = values.get("target", TARGET["id"].default)
    named = "draft" in values or "drafter" in values or values.get("k") == 0
    elsewhere = "decoder" in values and values["decoder"].name != OWN_LOOP
    if named or elsewhere or target not in DEFAULT_DRAFTER or target_of(values).random:
        return values
    drafter, schedule = map(Spec.parse, DEFAULT_DRAFTER[target])
    of_schedule = {} if values.keys() & {"k", "schedule"} else {"schedule": schedule}
    return {**values, "drafter": drafter, **of_schedule}


def _drafting(values: Mapping[str, Any], facts: ModelFacts) -> tuple[Spec, str | None]:
    """Return the drafter, and the name of its draft or None; UsageError: options of no draft.

    `k` 0 has the drafter `none`. A bundled target brings a draft model, or a head of the drafter's
    kind; a head's file says its drafter. Else the drafter is `model` with a draft, `ngram` without.
    A named drafter and draft are returned as they are, even if they do not go together.
    """
    drafter: Spec | None = values.get("drafter")
    draft: str | None = values.get("draft")
    if "draft_revision" in values and draft is None:
        raise UsageError("`draft_revision` without `draft`: expected both or none")
    if values.get("k") == 0:
        return Spec("none"), None
    target = values.get("target", TARGET["id"].default)
    if draft is None and (drafter is None or takes_model(drafter)):
        draft = DEFAULT_DRAFT.get(target)
    elif draft is None and drafter is not None:
        names = (DEFAULT_HEAD.get((target, part.name)) for part in inner_drafters(drafter))
        draft = next(filter(None, names), None)
    elif drafter is None and draft is not None and not draft.startswith(SELF):
        family = facts.family(ModelSpec(draft, values.get("draft_revision")))
        drafter = Spec(family) if family else None
    lone = [setting.name for setting in DRAFT.values() if setting.name in values]
    if draft is None and lone:
        raise UsageError(f"`{lone[0]}` without a draft model: expected one. Name it with `draft`")
    return drafter or Spec("model" if draft else "ngram"), draft


def inner_drafters(drafter: Spec) -> tuple[Spec, ...]:
    """Return a drafter and, of a hybrid, the drafters that its arguments name."""
    inner = dict(drafter.args) if drafter.name == HYBRID else {}
    return (drafter, *(parse_inner(str(inner[key])) for key in ("first", "then") if key in inner))


def parse_inner(text: str) -> Spec:
    """Parse an inner drafter, its arguments joined by `+`; UsageError: no spec, or a hybrid."""
    name, colon, arguments = text.partition(":")
    try:
        spec = Spec.parse(name + colon + arguments.replace("+", ","))
    except ValueError as error:
        raise UsageError(f"{HYBRID}: {error}, joined by + here") from error
    if spec.name == HYBRID:
        raise UsageError(f"{HYBRID} of a {HYBRID}: expected other drafters. Name two of them")
    return spec


def takes_model(drafter: Spec) -> bool:
    """Return whether a draft model is the drafter or a part of it."""
    by_name = {HYBRID: "model"}.get(drafter.name, drafter.name)  # its `then`, by default
    return dict(drafter.args).get("then", by_name) in OVER_A_MODEL


def lookahead(drafter: Spec) -> int:
    """Return the default K: the depth of trees that the drafter's arguments imply, else 4."""
    depth, shape = (dict(drafter.args).get(name) for name in ("depth", "shape"))
    if shape is not None:
        return str(shape).count("x") + 1
    return depth if isinstance(depth, int) and depth > 0 else DEFAULT_K


def target_of(values: Mapping[str, Any]) -> ModelSpec:
    """Return the target, which ranks share; log a note if the usual engine is not installed.

    UsageError: remote code without a pinned revision, or an adapter that cannot be merged.
    """
    options = {field: values.get(option.name, option.default) for field, option in TARGET.items()}
    if "engine" not in values and DEFAULT_ENGINE != USUAL_ENGINE:
        log.info(f"note: engine {USUAL_ENGINE} is not installed: {DEFAULT_ENGINE} runs, slower")
    if options["trust_remote_code"] and options["revision"] is None:
        raise UsageError("`trust_remote_code`: expected a pinned revision. Give it with `revision`")
    size = ranks().size
    return _mergeable(ModelSpec(**options, parallel=f"tp:{size}" if size > 1 else None))


def draft_model(values: Mapping[str, Any], name: str, target: ModelSpec) -> ModelSpec:
    """Return the draft model, by default as the target is; UsageError: options it cannot have.

    `self:int4` is the target once more, quantised; `shape:512x8` has the target's architecture and
    random weights; others take no revision or adapter of the target. Some heads' weights are
    quantised by default on a CPU. Remote code runs where the target's does, of a pinned revision.
    """
    options = {field: values[s.name] for field, s in DRAFT.items() if s.name in values}
    if name.startswith(SELF):
        _check_own(name, options)
        weights = f"{RANDOM}-" * target.random + name.removeprefix(SELF)
        options |= {"revision": target.revision, "weights": weights, "adapter": target.adapter}
        name = target.id
    elif name.startswith(SHAPE):
        shape, of = parse_shape(name)
        if "revision" in options or "weights" in options:
            raise UsageError(
                f"`draft` {name} with `draft_revision` or `draft_weights`: expected none, as it "
                "has the target's architecture and random weights. Leave it out"
            )
        options |= {"revision": target.revision, "weights": RANDOM}
        name = f"{SHAPE}{shape}:{of or target.id}"
    elif name in HEAD_WEIGHTS and target.weights in (CHECKPOINT, BLOCKS) and target.device == "cpu":
        options.setdefault("weights", HEAD_WEIGHTS[name])
    is_trusted = target.trust_remote_code and options.get("revision") is not None
    alone = {"revision": None, "adapter": "", "parallel": None, "trust_remote_code": is_trusted}
    return _mergeable(replace(target, **alone | options | {"id": name}))


def _mergeable(model: ModelSpec) -> ModelSpec:
    """Return the model; UsageError: an adapter for weights that are random, blocks or shared."""
    if model.adapter and (model.random or model.weights == BLOCKS or model.ranks > 1):
        how = f"`weights` {model.weights}" if model.ranks == 1 else f"{model.ranks} ranks"
        raise UsageError(
            f"`adapter` with {how}: expected a checkpoint in one process. Leave one out"
        )
    return model


def _check_own(name: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError for a draft `self:FORMAT` of no such format, or with options of weights."""
    if name.removeprefix(SELF) not in QUANTISED:
        copies = ", ".join(SELF + kind for kind in QUANTISED)
        raise UsageError(
            f"`draft` {name}: expected {copies}, which are the target's own weights quantised. "
            "With fewer layers: `drafter` self:8-11"
        )
    for field in ("revision", "weights", "adapter"):
        if field in options:
            raise UsageError(
                f"`{DRAFT[field].name}` with `draft` {name}: expected one of the two, as the "
                "target says which weights these are"
            )
