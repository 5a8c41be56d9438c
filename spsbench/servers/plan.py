"""Parameters of a check, and the journal that stores its answers on arrival."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from spsbench.audit.statistical.betting import LEVEL
from spsbench.errors import DataError, MismatchError, UsageError, WriteError
from spsbench.servers.http import Limits
from spsbench.servers.speed import Objectives

SCHEMA = 1
PARTS = ("law", "greedy", "speed")

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
    bias: float = 0.05
    level: float = LEVEL
    most: int = 20_000  # upper limit on the server's tokens
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    requests: int = 16  # of a block
    objectives: Objectives | None = None
    seed: int = 0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        unknown = set(self.parts) - set(PARTS)
        if unknown or not self.parts:
            raise UsageError(f"--only {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
        if not self.prompts or not all(self.prompts):
            raise UsageError("no prompts (--prompts): expected one or more that are not empty")
        if self.draft is not None and self.weights is None:
            raise UsageError("--draft without --weights: expected both. Add --weights")
        if any(value <= 0 for value in self.temperatures):
            raise UsageError("--temperature 0: expected above 0. Greedy text is looked at anyway")
        if self.temperatures not in ((), (1.0,)) and self.weights is None:
            raise UsageError(
                "--temperature without --weights: expected 1, of which servers state probabilities"
            )
        numbers = (self.length, self.most, self.requests, *self.concurrency)
        if min(numbers) < 1 or not 0 < self.bias < 1 or not self.concurrency:
            raise UsageError("expected lengths and counts of 1 or more, and a bias of 0 to 1")
        if not 0 < self.level < 1 or self.seed < 0:
            raise UsageError("expected a --level between 0 and 1, and a --seed from 0")

    @property
    def sampled(self) -> tuple[float, ...]:
        """Return the temperatures of sampled texts, in rotation."""
        return self.temperatures or ((1.0, 0.5) if self.weights else (1.0,))

    def to_json(self) -> dict[str, Any]:
        """Return the parameters that a journal depends on."""
        values = asdict(self)
        for name in ("limits", "objectives", "parts", "most", "bias", "level", "draft"):
            del values[name]  # may change when a check resumes
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]


class Journal:
    """A file of answers, appended on arrival, one line each."""

    def __init__(self, path: Path | None, plan: Plan, *, resume: bool = False) -> None:
        self.path, self.made = path, 0
        self._kept: dict[str, Any] = {}
        self._file: TextIO | None = None
        if path is None:
            return
        if resume:
            self._read(path, plan)
        try:
            self._file = path.open("a" if resume else "x", encoding="utf-8")
        except FileExistsError as error:
            raise UsageError(
                f"{path} is there already (--keep): expected a new file. Continue with --resume "
                f"{path}"
            ) from error
        except OSError as error:
            raise WriteError.of(error, path) from error
        if not resume:
            self._write({"sps_check": SCHEMA, "plan": plan.to_json()})

    def _read(self, path: Path, plan: Plan) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"no kept answers ({path}): expected a file of `sps check`. Check --resume"
            ) from error
        whole = text[: text.rfind("\n") + 1]  # the last line may be truncated
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            known = head["plan"] if head["sps_check"] == SCHEMA else {}
            self._kept = {line["key"]: line["value"] for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"no kept answers ({path}): expected a file of `sps check`. Check --resume"
            ) from error
        asked = plan.to_json()
        differing = [name for name in asked if asked[name] != known.get(name)]
        if differing:
            line = f"kept answers of another check ({path}): expected the same options"
            sides = [f"{name}: {known.get(name)} | {asked[name]}" for name in differing]
            raise MismatchError.of(line, sides, " (kept | asked)")

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __getitem__(self, key: str) -> Any:
        return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept) + self.made

    def keep(self, key: str, value: Any) -> None:
        """Append a value."""
        self.made += 1
        self._write({"key": key, "value": value})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None or self.path is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise WriteError.of(error, self.path) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
