"""The options of `sps check`, which are the plan of a check, and what files keep of them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from spsbench.errors import DataError, MissingError, UsageError, first_line
from spsbench.settings.options import (
    AUDIT,
    SERVER,
    Check,
    Option,
    at_least,
    between,
    parse,
    reads_numbers,
)
from spsbench.settings.processors import PROCESSORS, ProcessorSettings
from spsbench.tables import read_table

SPEED, OUTPUT = "Speed", "Output"
NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?")
IS_NUMBER = Check(lambda text: bool(NUMBER.fullmatch(text)), "a number from 0")
IS_TOP_P = Check(lambda value: 0 < value <= 1, "a number above 0 and up to 1")
IS_SHARE = Check(lambda value: 0 < value < 1, "a number between 0 and 1")
MOST_TOGETHER = 1024
TOGETHER = 4  # concurrent requests, so that errors between requests of a batch can occur
PARTS = ("law", "greedy", "speed")
MODES = ("json", "mixed", "cache", "logprobs", "tools", "stream")  # asked by name: many refuse some
IN_FILES = {  # options whose names in files are others
    "prompts": "texts",
    "length": "max_new_tokens",
    "temperatures": "temperature",
    "most": "max_tokens",
    "parts": "only",
}
HEADER = (  # the options that the answers in a file depend on, by the names there
    *("url", "baseline", "weights", "model", "baseline_model", "prompts", "chat", "length"),
    *("temperatures", "top_p", "top_k", "together", "concurrency", "requests", "seed"),
    *("adapter", "adversary", *PROCESSORS),
)
MAY_CHANGE = ("parts", "most", "bias", "level", "draft", "url", "baseline")
"""The options that may change when a check resumes."""
OFF = {"top_p": 1.0, "top_k": 0, "together": None}  # left out of a file, with processors
OFF |= {"adapter": None, "adversary": None} | json.loads(json.dumps(asdict(ProcessorSettings())))
TABLE = read_table(__file__, "prompts.toml")
PROMPTS: tuple[str, ...] = tuple(TABLE["prompts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions(ProcessorSettings):
    """Options of a check, beside the address of the server.

    Args:
        baseline: Server of the same model without speculation, as a baseline.
        weights: The same model, loaded here to compute the probability of each token.
        adapter: PEFT adapter that the server has under the name `model`, merged into `weights`.
        draft: The server's draft model, with `weights`: bets on the tokens that it prefers.
        model: Name of the model on the server, if it serves several.
        baseline_model: Name of the model on the baseline server.
        chat: Send chat messages; the server applies its chat template.
        timeout: Longest silence in an answer.
        retries: Number of retries of a failed request.
        only: Run only this part: law, greedy, speed, json (schemas), logprobs (by `weights`),
            tools, stream, or greedy text in a mode: mixed (with sampled text), cache (repeated);
            repeatable.
        prompts: File of prompts, one per line, as text or JSON.
        max_new_tokens: Maximum tokens per text.
        temperature: Sampling temperature, with `weights`; repeatable. Default: 1 and 0.5. Texts at
            others than 1 without weights, and greedy ones (0), only share the batch.
        top_p: Top-p of sampled texts, with `weights`; 1 is off.
        top_k: Top-k of sampled texts, with `weights`; 0 is off.
        together: Requests at a time while texts are audited. Default: 4, or the most of
            `concurrency` if that is less.
        bias: Smallest bias that the audit must detect.
        level: Probability of a false alarm.
        max_tokens: Maximum number of sampled tokens.
        seed: Random seed of the first text.
        concurrency: Numbers of concurrent requests, each timed apart.
        requests: Requests per timed block; each server gets two blocks.
        keep: File that keeps each answer. Default: named by server and time.
        adversary: Script of a vLLM that drafts what it says: audits greedy and sampled texts under
            such drafts, `max_tokens` a scenario.
        resume: Resume a check from its file of answers; without URL, compute its results anew, of
            a compressed file (.gz) too.
    """

    url: str = ""
    baseline: Annotated[str | None, Option(SERVER, metavar="URL")] = None
    weights: Annotated[str | None, Option(SERVER, metavar="MODEL")] = None
    adapter: Annotated[str | None, Option(SERVER, metavar="FOLDER")] = None
    draft: Annotated[str | None, Option(SERVER, metavar="MODEL")] = None
    model: Annotated[str | None, Option(SERVER)] = None
    baseline_model: Annotated[str | None, Option(SERVER)] = None
    chat: Annotated[bool, Option(SERVER)] = False
    timeout: Annotated[float, Option(SERVER, metavar="SECONDS")] = 120.0
    retries: Annotated[int, Option(SERVER)] = 3
    only: Annotated[tuple[str, ...], Option(AUDIT, metavar="PART")] = ()
    prompts: Annotated[Path | None, Option(AUDIT, metavar="FILE")] = None
    max_new_tokens: Annotated[int, Option(AUDIT, at_least(1), flags=("n",))] = 64
    temperature: Annotated[tuple[str, ...], Option(AUDIT, IS_NUMBER, metavar="NUMBER")] = ()
    top_p: Annotated[float, Option(AUDIT, IS_TOP_P, metavar="NUMBER")] = 1.0
    top_k: Annotated[int, Option(AUDIT, at_least(0), metavar="N")] = 0
    together: Annotated[int | None, Option(AUDIT, between(1, MOST_TOGETHER), metavar="N")] = None
    bias: Annotated[float, Option(AUDIT, IS_SHARE)] = 0.05
    level: Annotated[float, Option(AUDIT, IS_SHARE)] = 1e-3
    max_tokens: Annotated[int, Option(AUDIT, at_least(1))] = 20_000
    seed: Annotated[int, Option(AUDIT, at_least(0), default_text="0")] = 0
    concurrency: Annotated[
        tuple[int, ...],
        Option(SPEED, default_text="1,2,4,8", parse=reads_numbers(1, MOST_TOGETHER)),
    ] = (1, 2, 4, 8)
    requests: Annotated[int, Option(SPEED, between(1, 100_000))] = 16
    adversary: Annotated[str | None, Option(AUDIT, metavar="FILE")] = None
    keep: Annotated[Path | None, Option(OUTPUT, metavar="FILE")] = None
    resume: Annotated[Path | None, Option(OUTPUT, metavar="FILE")] = None
    texts: tuple[str, ...] = PROMPTS  # those of `prompts`

    def __post_init__(self) -> None:
        if self.keep is not None and self.resume is not None:
            raise UsageError("`keep` with `resume`: expected one of the two")
        if self.prompts is not None:
            object.__setattr__(self, "texts", read_prompts(self.prompts))
        if unknown := set(self.only) - {*PARTS, *MODES}:
            parts = ", ".join(PARTS + MODES)
            raise UsageError(f"`only` {', '.join(unknown)}: expected some of {parts}")
        if not self.texts or not all(self.texts):
            raise UsageError("no prompts (`prompts`): expected one or more that are not empty")
        if self.min_new_tokens > self.max_new_tokens:
            raise UsageError(
                f"`min_new_tokens` {self.min_new_tokens} with `max_new_tokens` "
                f"{self.max_new_tokens}: expected no more than those. Lower it"
            )
        if self.weights is None and (self.draft or self.adapter or self.cut):
            raise UsageError(
                "`adapter`, `draft`, `top_p` or `top_k` without `weights`: expected both, as "
                "servers state probabilities of the target before the cut. Add `weights`"
            )
        if not any(map(self.audits, self.temperatures)):
            raise UsageError(
                "`temperature`: expected one above 0 whose probabilities are known. Greedy text "
                "is its own part; servers state the probabilities of 1, `weights` give all"
            )
        if "mixed" in self.parts and self.batch < 2:
            raise UsageError(
                "`only` mixed with one request at a time (`together`, `concurrency`): expected 2 "
                "or more, to share a batch"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of the check: those of `only`, else law, greedy and speed."""
        return self.only or PARTS

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Return the temperatures of sampled texts in turn; by default 1, and 0.5 with weights."""
        return tuple(map(float, self.temperature)) or ((1.0, 0.5) if self.weights else (1.0,))

    def audits(self, temperature: float) -> bool:
        """Return whether probabilities are known: by weights all above 0, else those of 1."""
        return temperature > 0 and (self.weights is not None or temperature == 1)

    @property
    def cut(self) -> dict[str, float]:
        """Return the cuts of sampled texts that are not off, as engines name them."""
        return {name: v for name in ("top_p", "top_k") if (v := getattr(self, name)) != OFF[name]}

    @property
    def processors(self) -> ProcessorSettings:
        """Return the logits processors of sampled texts, and of greedy ones that are compared."""
        return ProcessorSettings(**{name: getattr(self, name) for name in PROCESSORS})

    @property
    def batch(self) -> int:
        """Return the number of requests at a time, while texts are compared or audited."""
        return self.together or min(TOGETHER, max(self.concurrency))

    def header(self) -> dict[str, Any]:
        """Return the options that kept answers depend on, by their names in files, unless off."""
        return {n: v for n, v in self._in_file(HEADER).items() if n not in OFF or v != OFF[n]}

    def changeable(self) -> dict[str, Any]:
        """Return the options that may change when a check resumes."""
        return self._in_file(MAY_CHANGE)

    def _in_file(self, names: Iterable[str]) -> dict[str, Any]:
        derived = {"parts": self.parts, "temperatures": [*map(float, self.temperature)]}
        values = {n: derived.get(n, getattr(self, IN_FILES.get(n, n))) for n in names}
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]


def read_check_options(
    path: Path | None, values: Mapping[str, Any], given: Mapping[str, Any]
) -> CheckOptions:
    """Return options `values`, kept in `path`, under `given` ones; DataError: another version's."""
    try:
        kept = {IN_FILES.get(n, n): v for n, v in values.items() if n in {*HEADER, *MAY_CHANGE}}
        kept["temperature"] = tuple(map(str, kept["temperature"]))
        kept["only"] = tuple(part for part in kept.get("only", PARTS) if part in PARTS + MODES)
        url, texts = str(kept.pop("url")), tuple(map(str, kept.pop("texts")))
        (plan,) = parse({**kept, **given}, CheckOptions)
        return replace(plan, url=url, texts=texts)  # type: ignore[no-any-return]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(
            f"kept answers of another version ({path}: {first_line(error)}): expected one of this "
            "version"
        ) from error


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file of lines or data; SpsError: a bad file, or a missing package."""
    from spsbench.tasks.jsonl import prompts_in

    try:
        return prompts_in(path)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"{error.name} is not installed ({path}): expected it for such data. "
            "Install it, or give a prompt a line"
        ) from error
