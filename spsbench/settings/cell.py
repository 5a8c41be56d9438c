"""A configuration of models, method, sampling and work: requested, then resolved to a cell.

`methods.resolve.resolve` makes a `Cell` of a `CellRequest`: checked, with its verifier and its
costs of rounds. A cell holds everything that can change the generated text; `Cell.id` names it in
runs. The annotations of the fields declare the options of cells.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Self

from spsbench.registry import BUILT_IN
from spsbench.settings.constraint import KINDS as CONSTRAINTS
from spsbench.settings.constraint import constraint_kind, read_grammar, read_regex, read_schema
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import METHOD, SAMPLING, Check, Option, at_least, between, options_of
from spsbench.settings.processors import COUNT, PROCESSORS, ProcessorSettings
from spsbench.spec import Spec

AUTO = Spec("auto")
ARS_VERIFIER = Spec("sps")  # the rule of K = 0, where no draft is verified
OWN_LOOP = "native"
CONSTANT = "constant"  # the schedule that `k` stands for
ENGINES_OWN = Spec("own")
"""Drafter, and schedule, of a decoder that loads nothing: the engine drafts as it is set up."""
ELSEWHERE = frozenset(
    entry.name for entry in BUILT_IN if entry.kind == "decoders" and not entry.loads
)
"""Decoders whose engine has the models, so that nothing is loaded here."""
GUARANTEES = {entry.name: entry.guarantee for entry in BUILT_IN if entry.kind == "verifiers"}
"""Built-in rule -> its promise: exact, greedy-exact or lossy."""
EXACT, LOSSY = "exact", "lossy"
SEED_MAX = 2**64 - 1


def constant(k: int) -> Spec:
    """Return the schedule that drafts `k` tokens in every round."""
    return Spec(CONSTANT, (("lookahead", k),))


def k_of(schedule: Spec) -> int | None:
    """Return the tokens that a constant schedule drafts per round; None where it names none."""
    lookahead = dict(schedule.args).get("lookahead")
    return int(lookahead) if schedule.name == CONSTANT and lookahead is not None else None


@dataclass(frozen=True)  # without slots: a cell keeps its `id` once it is known
class WarpSettings:
    """Options of the warp from logits to probabilities, in the order in which they apply.

    `loop.sampling.Warp` says what they do, and `audit.statistical.positions` says it once more.
    Command line, records, labels, traces and peers derive from these fields, whose names
    transformers uses too, and from those of `ProcessorSettings`, which come before them.

    Args:
        temperature: Sampling temperature; 0 is greedy decoding.
        top_k: Sample from the k most likely tokens only; 0 is off.
        top_p: Nucleus sampling, from the most likely tokens of total probability p; 1 is off.
        min_p: Drop tokens below this share of the most likely token's probability; 0 is off.
    """

    temperature: Annotated[float, Option(SAMPLING, at_least(0))] = 1.0
    top_k: Annotated[int, Option(SAMPLING, COUNT)] = 0
    top_p: Annotated[
        float, Option(SAMPLING, Check(lambda p: 0 < p <= 1, "above 0 and at most 1"))
    ] = 1.0
    min_p: Annotated[float, Option(SAMPLING, between(0, 1, "0 (off) to 1"))] = 0.0


WARP = tuple(field.name for field in fields(WarpSettings))
DISTRIBUTION = (*PROCESSORS, *WARP)
"""Options that change the distribution of a token, in the order in which they apply."""
ALWAYS_RECORDED = ("temperature", "top_k", "top_p")
"""Options of `DISTRIBUTION` that every record names; others only where not at their default."""


@dataclass(frozen=True, kw_only=True)
class Configuration(ProcessorSettings, WarpSettings):
    """Models, method, sampling and work: the fields of a `CellRequest` and of a `Cell`.

    Args:
        drafter: What proposes tokens: NAME[:key=value,...]; see sps list drafters.
        verifier: Acceptance rule; see sps list verifiers.
        schedule: How K is chosen in each round; see sps list schedules.
        decoder: Decoding loop: native, hf (transformers' generate), or another engine:
            openai:url=..., sglang:url=..., llamacpp:path=... or openvino:path=....
        max_new_tokens: Maximum number of tokens to generate.
        seed: Random seed; the same seed gives the same text.
        stop: Stop before this text; repeatable.
        ignore_eos: Continue after an end-of-text token.
        json_schema: JSON schema that each text follows: a FILE, or the schema itself.
        leave_open: Let `max_new_tokens` cut a text in its JSON schema; else it is completed.
        regex: Regular expression that each text matches in full.
        grammar: Lark grammar that each text follows, in llguidance's dialect.
    """

    target: ModelSpec
    draft: ModelSpec | None = None
    drafter: Annotated[
        Spec,
        Option(METHOD, default_text="model, or without a draft the target's bundled head or ngram"),
    ] = Spec("model")
    verifier: Annotated[
        Spec,
        Option(
            METHOD, default_text="sps; traversal for sampled trees; match for deterministic drafts"
        ),
    ] = AUTO
    schedule: Annotated[
        Spec, Option(METHOD, default_text="constant, or that of the target's own drafter")
    ] = constant(4)
    decoder: Annotated[Spec, Option(METHOD)] = Spec("native")

    max_new_tokens: Annotated[int, Option(SAMPLING, at_least(0), flags=("n",))] = 128
    seed: Annotated[int, Option(SAMPLING, between(0, SEED_MAX, "0..2^64-1"))] = 0
    stop: Annotated[
        tuple[str, ...], Option(SAMPLING, Check(bool, "a text of at least one character"))
    ] = ()
    ignore_eos: Annotated[bool, Option(SAMPLING)] = False
    json_schema: Annotated[str, Option(SAMPLING, metavar="FILE|TEXT", parse=read_schema)] = ""
    leave_open: Annotated[bool, Option(SAMPLING)] = False
    regex: Annotated[str, Option(SAMPLING, parse=read_regex)] = ""
    grammar: Annotated[str, Option(SAMPLING, metavar="FILE", parse=read_grammar)] = ""
    task: Spec | None = None
    prompt_version: str = ""
    chat: bool = False  # prompts in the model's chat template
    system: str = ""  # message before them
    batch: int = 1  # texts at a time: in common passes, or as requests to a server
    continuous: bool = False  # a text that ends makes room for the next; else its place is empty

    @property
    def models(self) -> list[ModelSpec]:
        """Return the target and, if there is one, the draft model."""
        return [model for model in (self.target, self.draft) if model is not None]

    @property
    def ranks(self) -> int:
        """Return the number of processes that share the models."""
        return max(model.ranks for model in self.models)

    @property
    def random(self) -> bool:
        """Return whether any model has random weights, so that the text has no meaning."""
        return any(model.random for model in self.models)

    @property
    def own_loop(self) -> bool:
        """Return whether this package's loop decodes, not another library's."""
        return self.decoder.name == OWN_LOOP

    @property
    def elsewhere(self) -> bool:
        """Return whether another engine has the models, so that nothing is loaded here."""
        return self.decoder.name in ELSEWHERE

    @property
    def on_server(self) -> bool:
        """Return whether a running server makes the text, whose drafting cannot be changed."""
        return self.elsewhere and "url" in dict(self.decoder.args)

    @property
    def k(self) -> int | None:
        """Return the tokens drafted per round: 0 for ArS, None if the schedule is not constant."""
        return 0 if self.drafter.name == "none" else k_of(self.schedule)

    @property
    def constrained(self) -> bool:
        """Return whether texts follow a schema, an expression or a grammar."""
        return constraint_kind(self) is not None

    @property
    def lossy(self) -> bool:
        """Return whether the verifier is known to change the target's distribution."""
        return GUARANTEES.get(self.verifier.name) == LOSSY

    @property
    def warp(self) -> WarpSettings:
        """Return the options of the warp alone."""
        return WarpSettings(**{name: getattr(self, name) for name in WARP})

    @property
    def processors(self) -> ProcessorSettings:
        """Return the options of logits processors alone."""
        return ProcessorSettings(**{name: getattr(self, name) for name in PROCESSORS})

    @property
    def changed_distribution(self) -> dict[str, Any]:
        """Return the options of `DISTRIBUTION` that are not at their default."""
        values = {name: getattr(self, name) for name in DISTRIBUTION}
        return {n: v for n, v in values.items() if v != type(self).__dataclass_fields__[n].default}

    def but(self, **values: Any) -> Self:
        """Return the configuration with other values in some fields."""
        return replace(self, **values)


@dataclass(frozen=True, kw_only=True)
class CellRequest(Configuration):
    """A configuration as it is requested, with defaults: no method has checked it.

    Its verifier may be `auto`, and its schedule may name the costs of this machine (`costs=here`).
    """


@dataclass(frozen=True, kw_only=True)
class Cell(Configuration):
    """A resolved configuration: its methods accept it, and it names its verifier and costs."""

    guarantee: str = field(default="", compare=False)  # what the verifier promises; "": unknown

    def __post_init__(self) -> None:
        object.__setattr__(self, "guarantee", GUARANTEES.get(self.verifier.name, self.guarantee))

    @property
    def noise_key(self) -> str:
        """Return the key that seeds the random numbers of a method.

        Methods draw independently of each other from one seed, while a longer budget only
        continues the text (but for the last token, before which there was less room to draft).
        """
        return f"{self.drafter}/{self.verifier}/{self.schedule}"

    @property
    def compared_decoder(self) -> Spec:
        """Return the decoder without arguments that change no text of another engine."""
        if not self.elsewhere:
            return self.decoder
        args = (pair for pair in self.decoder.args if pair[0] not in ("timeout", "retries"))
        return replace(self.decoder, args=tuple(args))

    @property
    def recorded_distribution(self) -> dict[str, Any]:
        """Return the options of the distribution as traces and tables of costs store them."""
        values = {name: getattr(self, name) for name in ALWAYS_RECORDED} | self.changed_distribution
        return {n: [*v] if isinstance(v, tuple) else v for n, v in values.items()}

    @property
    def auto_regressive(self) -> "Cell":
        """Return the cell of K = 0 with the same work."""
        verifier = AUTO if self.elsewhere else ARS_VERIFIER
        return self.but(draft=None, drafter=Spec("none"), verifier=verifier, schedule=constant(0))

    @property
    def lossy(self) -> bool:
        """Return whether the verifier says that it changes the target's distribution."""
        return self.guarantee == LOSSY

    @classmethod
    def from_request(cls, request: CellRequest, **values: Any) -> Self:
        """Return the cell with the fields of a checked request, but for `values`."""
        return cls(**{**_fields_of(request), **values})

    def to_request(self, **values: Any) -> CellRequest:
        """Return a request with the fields of this cell, but for `values`, to be resolved anew."""
        return CellRequest(**{**_fields_of(self), **values})

    def same_work(self, other: "Cell") -> bool:
        """Return whether two cells differ at most in draft, drafter, verifier and schedule."""
        return self.auto_regressive == other.auto_regressive

    @cached_property
    def id(self) -> str:
        """Return 12 hex digits that hash all non-default values: a new field changes no id.

        Not hashed: how long another engine is waited for, and the guarantee (the rule's source is).
        """
        usual = type(self)(target=ModelSpec("")).to_json()
        values = {**self.to_json(), "decoder": _plain(self.compared_decoder)}
        values.pop("guarantee", None)  # the verifier's source is hashed
        changed = {n: v for n, v in values.items() if n not in usual or v != usual[n]}
        for name in ("target", "draft"):
            if changed.get(name) is not None:
                model = usual["target"]
                changed[name] = {n: v for n, v in changed[name].items() if v != model.get(n)}
        return short_hash(changed, 12)

    def to_json(self) -> dict[str, Any]:
        """Return every field by name, as plain values.

        An option of `DISTRIBUTION` that is not in `ALWAYS_RECORDED` is left out at its default, and
        so are a batch, a constraint, and the guarantee of a built-in verifier or of none.
        """
        left_out = {name for name in DISTRIBUTION if name not in self.recorded_distribution}
        optional = {"batch": 1, "continuous": False, **dict.fromkeys(CONSTRAINTS, "")}
        left_out |= {name for name, value in optional.items() if getattr(self, name) == value}
        if self.verifier.name in GUARANTEES or not self.guarantee:
            left_out.add("guarantee")
        names = (field.name for field in fields(self) if field.name not in left_out)
        return {name: _plain(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a cell from the values of `to_json`; missing fields get their defaults.

        TypeError: an unknown field. ValueError: no `target`, or a value of another type.
        """
        from msgspec import convert  # not for `sps --help`

        if unknown := values.keys() - {field.name for field in fields(cls)}:
            raise TypeError(f"a cell has no {', '.join(sorted(unknown))}")
        cell = convert(values, cls)
        int(cell.k or 0)  # that of a constant schedule must be a number
        return cell


METHOD_FIELDS = ("drafter", "verifier", "schedule", "decoder")
SAMPLING_FIELDS = tuple(name for name in options_of(CellRequest) if name not in METHOD_FIELDS)
"""Options of sampling: the distribution of each token, length and end of the text, the seed."""


def _fields_of(configuration: Configuration) -> dict[str, Any]:
    """Return the fields that requests and cells have, by name."""
    return {field.name: getattr(configuration, field.name) for field in fields(CellRequest)}


def short_hash(values: Mapping[str, Any], digits: int) -> str:
    """Return the first hex digits of the SHA-256 of the canonical JSON of `values`."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


def _plain(value: Any) -> Any:
    """Return specs as mappings, `source` and `adapter` only where set; others as they are."""
    if isinstance(value, Spec):
        source = {"source": value.source} if value.source else {}
        return {"name": value.name, "args": value.args, **source}
    if isinstance(value, ModelSpec):
        names = [field.name for field in fields(value) if field.name != "adapter" or value.adapter]
        return {name: _plain(getattr(value, name)) for name in names}
    return value
