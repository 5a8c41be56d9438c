"""THE schema: what is asked (Spec, ModelRef, Cell) and what was measured (RoundRecord, Record).

Records hold measurements only; every rate is computed from them in `metrics.py`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

SCHEMA = 1

Scalar = str | int | float | bool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration: everything that can change what is generated."""

    target: ModelRef
    draft: ModelRef | None = None
    drafter: Spec = Spec("model")
    verifier: Spec = Spec("auto")  # sps for sampled chains, match for drafts that come by rule
    schedule: Spec = Spec("constant", (("lookahead", 4),))
    engine: Spec = Spec("eager")
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

    @property
    def method(self) -> str:
        """How tokens are drafted and verified; it keys the noise.

        So methods draw independently of each other from one seed, while a longer budget only
        continues the text (but for the last token, before which there was less room to draft).
        """
        return f"{self.drafter}/{self.verifier}/{self.schedule}"

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One generation."""

    prompt_tokens: int
    tokens: list[int]
    text: str
    finish: str
    prefill_seconds: float
    rounds: list[RoundRecord]
