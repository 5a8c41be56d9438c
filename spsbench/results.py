"""THE schema: what is asked (Spec, ModelRef, Cell) and what was measured (RoundRecord, Record).

Records hold measurements only; every rate is computed from them in `metrics.py`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

SCHEMA = 1
NANO = 9  # digits of a second that are kept: clocks tell no more

Scalar = str | int | float | bool

Key = tuple[str, str, int]
"""What may be in a run only once: cell, sample, repeat."""


def short_hash(values: Mapping[str, Any], digits: int) -> str:
    """The first hex digits of the SHA-256 of the canonical JSON of `values`."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


@dataclass(frozen=True, slots=True)
class Spec:
    """A plug-in by name with its arguments: `ngram:n=3,min_n=1`."""

    name: str
    args: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """`name[:key=value,...]`; values are read as int, float, true/false, else text.

        Raises:
            ValueError: an empty name, a pair without `=`, or a key given twice.
        """
        name, colon, rest = text.partition(":")
        if not name or (colon and not rest):
            raise ValueError(f"{text!r}: expected NAME or NAME:key=value,...")
        args: dict[str, Scalar] = {}
        for pair in rest.split(",") if rest else ():
            key, equals, value = pair.partition("=")
            if not key or not equals or not value:
                raise ValueError(f"{text!r}: expected key=value, got {pair!r}")
            if key in args:
                raise ValueError(f"{text!r}: {key} is given twice")
            args[key] = _scalar(value)
        return cls(name, tuple(args.items()))

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={_written(value)}" for key, value in self.args)
        return f"{self.name}:{pairs}" if pairs else self.name


def _written(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model: the name of a bundled one, a local folder, or a hub id at a revision."""

    id: str
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)  # without slots: `id` is kept once it is known
class Cell:
    """One configuration: everything that can change what is generated."""

    target: ModelRef
    draft: ModelRef | None = None
    task: Spec | None = None
    prompt_version: str = ""
    drafter: Spec = Spec("model")
    verifier: Spec = Spec("auto")  # sps for sampled chains, match for drafts that come by rule
    schedule: Spec = Spec("constant", (("lookahead", 4),))
    engine: Spec = Spec("fast")
    decoder: Spec = Spec("native")
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    device: str = "cpu"
    dtype: str = "auto"
    attention: str | None = None
    trust_remote_code: bool = False
    random_weights: bool = False  # shapes only: timing, no meaning

    @property
    def method(self) -> str:
        """How tokens are drafted and verified; it keys the noise.

        So methods draw independently of each other from one seed, while a longer budget only
        continues the text (but for the last token, before which there was less room to draft).
        """
        return f"{self.drafter}/{self.verifier}/{self.schedule}"

    @property
    def k(self) -> int | None:
        """Tokens drafted a round: 0 for ArS, None under a schedule that is not constant."""
        if self.drafter.name == "none":
            return 0
        return (
            int(dict(self.schedule.args)["lookahead"]) if self.schedule.name == "constant" else None
        )

    @cached_property
    def id(self) -> str:
        """12 hex digits that any other value of any field changes."""
        return short_hash(asdict(self), 12)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Cell":
        """The inverse of `asdict`, after a way through JSON.

        Raises:
            TypeError, KeyError: a field is missing or unknown.
        """
        made: dict[str, Any] = dict(values)
        for name in ("task", "drafter", "verifier", "schedule", "engine", "decoder"):
            if made[name] is not None:
                pairs = tuple((key, value) for key, value in made[name]["args"])
                made[name] = Spec(made[name]["name"], pairs)
        for name in ("target", "draft"):
            made[name] = made[name] and ModelRef(**made[name])
        return cls(**{**made, "stop": tuple(made["stop"])})


class RoundRecord(NamedTuple):
    """The measurements of one round; counts as in `types.Round`, times in seconds."""

    drafted: int
    tested: int  # -1 = not applicable
    accepted: int
    emitted: int
    overlap: float | None  # sum over tested slots of sum_x min(p, q)
    seconds: float
    draft_seconds: float
    target_seconds: float


class DraftLaws(NamedTuple):
    """The draft of one round for an audit: each token with its probability in both laws."""

    tokens: list[int]
    p: list[float]  # by the draft; 1 for a token that came by rule
    q: list[float]  # by the target, given the tokens before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One generation, or its failure: `error` set and no tokens. Never a zero for either."""

    cell: str = ""  # Cell.id
    sample: str = ""
    repeat: int = 0
    prompt_tokens: int
    tokens: list[int]
    text: str
    finish: str
    prefill_seconds: float
    rounds: list[RoundRecord]
    error: str | None = None
    prompt_cut: bool = False  # the document was cut to fit the context
    group: str | None = None  # a category of the task, for reports by group
    flags: tuple[str, ...] = ()  # why its timing is not to be averaged: "first", "loaded"
    laws: list[DraftLaws] | None = None  # one a round, under `--record laws`

    @property
    def key(self) -> Key:
        """What may be in a run only once."""
        return self.cell, self.sample, self.repeat

    def to_json(self) -> dict[str, Any]:
        """Plain values, times to the nanosecond; rounds and laws as arrays in their fields' order.

        Laws are there only if they were recorded.
        """
        values = {
            "cell": self.cell,
            "sample": self.sample,
            "repeat": self.repeat,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "text": self.text,
            "finish": self.finish,
            "prefill_seconds": round(self.prefill_seconds, NANO),
            "rounds": [[*r[:5], *(round(seconds, NANO) for seconds in r[5:])] for r in self.rounds],
            "error": self.error,
            "prompt_cut": self.prompt_cut,
            "group": self.group,
            "flags": list(self.flags),
        }
        return values if self.laws is None else values | {"laws": [list(r) for r in self.laws]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Record":
        """The inverse of `to_json`.

        Raises:
            TypeError: a field is missing or unknown.
        """
        rounds = list(map(RoundRecord._make, values["rounds"]))
        made = {**values, "rounds": rounds, "flags": tuple(values["flags"])}
        if "laws" in values:
            made["laws"] = list(map(DraftLaws._make, values["laws"]))
        return cls(**made)


@dataclass(frozen=True, slots=True)
class Score:
    """What a task makes of one generation, for instance {"rouge2": 0.11}."""

    cell: str
    sample: str
    repeat: int
    metrics: dict[str, float]

    @property
    def key(self) -> Key:
        """That of the record it was made of."""
        return self.cell, self.sample, self.repeat
