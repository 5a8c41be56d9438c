"""Parameters of a check, and the journal that stores its answers on arrival."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spsbench.audit.statistical.betting import LEVEL
from spsbench.errors import DataError, MismatchError, UsageError, first_line
from spsbench.extensions.check.speed import Objectives
from spsbench.hardware.files import open_file
from spsbench.serving.http import Limits
from spsbench.store.atomic import check_replaceable
from spsbench.store.log import HeadedLog, Log

T = TypeVar("T")
SCHEMA = 2
BEGINNING = b'{"n":0,"sps_check":'
NO_LOGARITHM = -9999.0  # as engines write a probability of 0
MOST_REQUESTS = 100_000
MOST_TOGETHER = 1024
TOGETHER = 4  # concurrent requests, so that errors between requests of a batch can occur
PARTS = ("law", "greedy", "speed")
ALL_PARTS = (*PARTS, "json")  # json is asked by name: many servers take no schema

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
        for name in ("limits", "objectives", "parts", "most", "bias", "level", "draft"):
            del values[name]  # may change when a check resumes
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]


class Journal:
    """The answers of a check: a log that begins with the plan, opened with the first answer."""

    def __init__(self, path: Path | None, plan: Plan, *, resume: bool = False) -> None:
        """Read the answers of `path` to resume a check, or check that a new file can be written.

        Raises:
            UsageError: there is a file already, and no `resume`.
            DataError: the file to resume is of another kind, or damaged.
            InUseError: another check writes the file.
            MismatchError: the file is of a check with other options.
            WriteError: the file cannot be written.
        """
        self.path, self._plan, self._added = path, plan, 0
        self._values: dict[str, Any] = {}
        self._log: Log | None = None
        if path is None:
            return
        if resume:
            self._check_kind(path)
            self._log = self._open(path, self._check_plan)
        elif os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0):
            raise self._exists()
        else:
            check_replaceable(path)

    def _check_kind(self, path: Path) -> None:
        """Check that a file begins as a journal does, before the log mends its end."""
        try:
            with open_file(path) as file:
                begins = file.read(len(BEGINNING))
        except OSError as error:
            raise self._no_journal() from error
        if not BEGINNING.startswith(begins):
            raise self._no_journal()

    def _open(self, path: Path, check: Callable[[dict[str, Any]], None]) -> Log:
        header = {"sps_check": SCHEMA, "plan": self._plan.to_json()}
        return HeadedLog(path, header, check, self._see)

    def _see(self, values: dict[str, Any]) -> None:
        if isinstance(key := values.get("key"), str) and "value" in values:
            self._values[key] = values["value"]
        else:
            raise DataError(
                f"no answer in a line of the kept answers ({self.path}): expected a file of "
                "`sps check`. Check `resume`"
            )

    def _check_plan(self, header: dict[str, Any]) -> None:
        options, kept = self._plan.to_json(), header.get("plan")
        if header.get("sps_check") != SCHEMA or not isinstance(kept, dict):
            raise self._no_journal()
        names = dict.fromkeys([*options, *kept])
        differing = [name for name in names if options.get(name) != kept.get(name)]
        if differing:
            line = f"kept answers of another check ({self.path}): expected the same options"
            sides = [f"{name}: {kept.get(name)} | {options.get(name)}" for name in differing]
            raise MismatchError.of(line, sides, " (kept | asked)")

    def _refuse_old(self, _: dict[str, Any]) -> None:
        """Refuse a file that another check has written since the start of this one."""
        raise self._exists()

    def _exists(self) -> UsageError:
        return UsageError(
            f"{self.path} is there already (`keep`): expected a new file. Continue with `resume` "
            f"{self.path}"
        )

    def _no_journal(self) -> DataError:
        return DataError(
            f"no kept answers ({self.path}): expected a file of `sps check`. Check `resume`"
        )

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values) + self._added

    def read(self, key: str, convert: Callable[[Any], T]) -> T:
        """Return a kept value, converted.

        Raises:
            DataError: the value has not the form of its kind.
        """
        try:
            return convert(self._values[key])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"kept answer {key} of another version ({self.path}: {type(error).__name__} "
                f"{first_line(error)}): expected one of this version. Start anew"
            ) from error

    def keep(self, key: str, value: Any) -> None:
        """Append a value, durable on return; the first one creates the file."""
        if self.path is not None:
            if self._log is None:
                self._log = self._open(self.path, self._refuse_old)
            self._log.append({"key": key, "value": finite(value, logarithm)})
        self._added += 1

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


def finite(value: Any, put: Callable[[float], float | None]) -> Any:
    """Return plain values, with another in place of each infinity and NaN, which JSON has not."""
    if isinstance(value, float) and not math.isfinite(value):
        return put(value)
    if isinstance(value, dict):
        return {key: finite(part, put) for key, part in value.items()}
    return [finite(part, put) for part in value] if isinstance(value, list | tuple) else value


def logarithm(value: float) -> float:
    """Return the logarithm that stands for an infinite one, or for none."""
    return -NO_LOGARITHM if value > 0 else NO_LOGARITHM
