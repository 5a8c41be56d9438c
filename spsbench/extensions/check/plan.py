"""Parameters of a check."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from spsbench.audit.statistical.betting import LEVEL
from spsbench.errors import UsageError
from spsbench.extensions.check.speed import Objectives
from spsbench.serving.http import Limits

MOST_REQUESTS = 100_000
MOST_TOGETHER = 1024
TOGETHER = 4  # concurrent requests, so that errors between requests of a batch can occur
PARTS = ("law", "greedy", "speed")
MODES = ("json", "mixed", "stop", "cache")  # `json_answers.py`, `modes.py`
ALL_PARTS = (*PARTS, *MODES)  # asked by name: many servers take no schema

# when a check resumes, or is computed anew
MAY_CHANGE = ("limits", "objectives", "parts", "most", "bias", "level", "draft")
UNKEPT = ("limits", "objectives")  # of the client, not of the text

PROMPTS = (
    "The old lighthouse keeper climbed the stairs every evening, and",
    "Photosynthesis is the process by which plants",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village near the sea, there lived",
    "Question: What is the capital of France, and what is it known for?\nAnswer:",
    "The three most important causes of the war were",
    "To bake a good loaf of bread, first",
    "In mathematics, a prime number is",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\n# Compute the mean of each column\n",
    "The weather forecast for tomorrow says that",
    "Q: If a train travels 60 miles in 90 minutes, how fast is it?\nA:",
    "My favourite book is about",
    "The patient was admitted to the hospital with",
    "List of countries by area:\n1.",
    "She opened the letter slowly. It said:",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a check."""

    url: str
    baseline: str | None = None
    weights: str | None = None
    draft: str | None = None
    model: str | None = None
    baseline_model: str | None = None
    parts: tuple[str, ...] = PARTS
    prompts: tuple[str, ...] = PROMPTS
    chat: bool = False
    length: int = 64  # tokens of a text
    temperatures: tuple[float, ...] = ()  # () = 1, and with weights 0.5 as well
    top_p: float = 1.0  # of sampled texts, as `top_k`
    top_k: int = 0
    together: int | None = None  # requests at a time; None: 4, or the most of `concurrency`
    bias: float = 0.05
    level: float = LEVEL
    most: int = 20_000  # upper limit on the server's tokens
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    requests: int = 16  # of a block
    objectives: Objectives | None = None
    seed: int = 0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        unknown = set(self.parts) - set(ALL_PARTS)
        if unknown or not self.parts:
            expected = ", ".join(ALL_PARTS)
            raise UsageError(f"`only` {', '.join(unknown)}: expected some of {expected}")
        if not self.prompts or not all(self.prompts):
            raise UsageError("no prompts (`prompts`): expected one or more that are not empty")
        if self.draft is not None and self.weights is None:
            raise UsageError("`draft` without `weights`: expected both. Add `weights`")
        if not all(0 <= value < math.inf for value in self.temperatures):
            raise UsageError("`temperature`: expected 0 or above, and one that can be audited")
        if self.temperatures and not any(map(self.audits, self.temperatures)):
            if self.weights is not None:
                raise UsageError("`temperature`: expected one above 0. Greedy text is its own part")
            raise UsageError(
                "`temperature` without `weights`: expected 1 among them, of which servers state "
                "probabilities"
            )
        if self.cut and self.weights is None:
            raise UsageError(
                "`top_p` or `top_k` without `weights`: expected both, as servers state "
                "probabilities before the cut. Add `weights`"
            )
        if not 0 < self.top_p <= 1 or self.top_k < 0:
            raise UsageError("expected a `top_p` above 0 and up to 1, and a `top_k` from 0 (off)")
        if self.together is not None and not 1 <= self.together <= MOST_TOGETHER:
            raise UsageError(f"`together` is {self.together}: expected 1..{MOST_TOGETHER}")
        if "mixed" in self.parts and self.batch < 2:
            raise UsageError(
                "`only` mixed with one request at a time (`together`, `concurrency`): expected 2 "
                "or more, to share a batch"
            )
        numbers = (self.length, self.most, self.requests, *self.concurrency)
        if min(numbers) < 1 or not 0 < self.bias < 1 or not self.concurrency:
            raise UsageError("expected lengths and counts of 1 or more, and a bias of 0 to 1")
        if self.requests > MOST_REQUESTS:
            raise UsageError(f"`requests`: expected at most {MOST_REQUESTS:,} for a block")
        if not 0 < self.level < 1 or self.seed < 0:
            raise UsageError("expected a `level` between 0 and 1, and a `seed` from 0")

    @property
    def sampled(self) -> tuple[float, ...]:
        """Return the temperatures of sampled texts, in rotation."""
        return self.temperatures or ((1.0, 0.5) if self.weights else (1.0,))

    def audits(self, temperature: float) -> bool:
        """Return whether the probabilities of texts at `temperature` are known.

        Servers state those of temperature 1; greedy texts keep the batch mixed.
        """
        return temperature > 0 and (self.weights is not None or temperature == 1)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the modes that are asked for, in their order."""
        return tuple(mode for mode in MODES if mode in self.parts)

    @property
    def compares(self) -> bool:
        """Return whether a part needs the plain greedy texts."""
        return bool({"greedy", "mixed", "stop"} & set(self.parts))

    @property
    def cut(self) -> dict[str, float]:
        """Return the cuts of sampled texts that are not off, as engines name them."""
        cuts: dict[str, float] = {"top_p": self.top_p} if self.top_p != 1 else {}
        return cuts | ({"top_k": self.top_k} if self.top_k else {})

    @property
    def batch(self) -> int:
        """Return the number of requests at a time, while texts are compared or audited."""
        return self.together or min(TOGETHER, max(self.concurrency))

    def to_json(self) -> dict[str, Any]:
        """Return the parameters that a journal depends on."""
        values = asdict(self)
        for field_of_later, off in (("top_p", 1.0), ("top_k", 0), ("together", None)):
            if values[field_of_later] == off:  # so that older journals go on
                del values[field_of_later]
        for name in MAY_CHANGE:
            del values[name]
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    def options(self) -> dict[str, Any]:
        """Return the parameters that may change, beside those of `to_json`."""
        values = asdict(self)
        kept = {name: values[name] for name in (*MAY_CHANGE, "url", "baseline")}
        kept = {name: value for name, value in kept.items() if name not in UNKEPT}
        return json.loads(json.dumps(kept))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, values: Mapping[str, Any], chosen: Mapping[str, Any]) -> "Plan":
        """Return the plan that `to_json` and `options` wrote, with `chosen` in place of its own.

        Raises:
            TypeError, ValueError, UsageError: other values.
        """
        names = {field.name for field in fields(cls)} - set(UNKEPT)
        kept = {name: value for name, value in values.items() if name in names}
        lists = {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
        if "parts" in lists:  # a file may have parts that are gone
            lists["parts"] = tuple(part for part in lists["parts"] if part in ALL_PARTS)
        return cls(**{**kept, **lists, **chosen})
