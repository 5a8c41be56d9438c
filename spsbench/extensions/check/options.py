"""The options of `sps check`, and the plan of a check that they make."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from spsbench.errors import MissingError, UsageError
from spsbench.settings.options import AUDIT, SERVER, Check, Option, options_of

SPEED, OUTPUT = "Speed", "Output"
NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?")
IS_NUMBER = Check(lambda text: bool(NUMBER.fullmatch(text)), "a number from 0")
LEVELS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of a check, beside the address of the server.

    Args:
        baseline: Server of the same model without speculation, as a baseline.
        weights: The same model, loaded here to compute the probability of each token.
        draft: The server's draft model, with `weights`: bets on the tokens that it prefers.
        model: Name of the model on the server, if it serves several.
        baseline_model: Name of the model on the baseline server.
        chat: Send chat messages; the server applies its chat template.
        timeout: Longest silence in an answer.
        retries: Number of retries of a failed request.
        only: Run only this part: law, greedy, speed, json (under schemas), or greedy text in a
            mode: mixed (beside sampled text), stop (strings), cache (asked again); repeatable.
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
        concurrency: Numbers of concurrent requests, each timed in turn.
        requests: Requests per timed block; each server gets two blocks.
        slo: Latency objectives for goodput: ttft:500ms,tpot:50ms.
        keep: File that keeps each answer; compressed at the end if it is named .gz. Default: named
            by server and time.
        resume: Resume an interrupted check from its file of answers.
    """

    baseline: Annotated[str | None, Option(SERVER, metavar="URL")] = None
    weights: Annotated[str | None, Option(SERVER, metavar="MODEL")] = None
    draft: Annotated[str | None, Option(SERVER, metavar="MODEL")] = None
    model: Annotated[str | None, Option(SERVER)] = None
    baseline_model: Annotated[str | None, Option(SERVER)] = None
    chat: Annotated[bool, Option(SERVER)] = False
    timeout: Annotated[float, Option(SERVER, metavar="SECONDS")] = 120.0
    retries: Annotated[int, Option(SERVER)] = 3
    only: Annotated[tuple[str, ...], Option(AUDIT, metavar="PART")] = ()
    prompts: Annotated[Path | None, Option(AUDIT, metavar="FILE")] = None
    max_new_tokens: Annotated[int, Option(AUDIT, flags=("n",))] = 64
    temperature: Annotated[tuple[str, ...], Option(AUDIT, IS_NUMBER, metavar="NUMBER")] = ()
    top_p: Annotated[float, Option(AUDIT, metavar="NUMBER")] = 1.0
    top_k: Annotated[int, Option(AUDIT, metavar="N")] = 0
    together: Annotated[int | None, Option(AUDIT, metavar="N")] = None
    bias: Annotated[float, Option(AUDIT)] = 0.05
    level: Annotated[float, Option(AUDIT)] = 1e-3
    max_tokens: Annotated[int, Option(AUDIT)] = 20_000
    seed: Annotated[int, Option(AUDIT, default_text="0")] = 0
    concurrency: Annotated[str, Option(SPEED)] = "1,2,4,8"
    requests: Annotated[int, Option(SPEED)] = 16
    slo: Annotated[str | None, Option(SPEED)] = None
    keep: Annotated[Path | None, Option(OUTPUT, metavar="FILE")] = None
    resume: Annotated[Path | None, Option(OUTPUT, metavar="FILE")] = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.resume is not None:
            raise UsageError("`keep` with `resume`: expected one of the two")
        plain = self.resume  # what is left of a compressed file by a kill
        if plain is not None and plain.suffix == ".gz" and not plain.is_file():
            plain = plain.with_suffix("")
        if plain is not None and not plain.is_file():
            raise MissingError(f"no kept answers ({self.resume}): expected a file. Check `resume`")

    def plan(self, url: str) -> Any:
        """Return the `plan.Plan` of a check of the server at `url`.

        Raises:
            SpsError: an address, a value or a file of prompts that cannot be used.
        """
        # here, so that `sps check --help` imports no client
        from spsbench.extensions.check.plan import Plan
        from spsbench.extensions.check.prompts import read_prompts
        from spsbench.extensions.check.speed import Objectives
        from spsbench.serving.address import checked
        from spsbench.serving.http import Limits

        if not LEVELS.fullmatch(self.concurrency):
            raise UsageError(
                f"`concurrency` {self.concurrency[:80]}: expected numbers like 1,2,4,8"
            )
        chosen: dict[str, Any] = {"parts": self.only} if self.only else {}
        if self.prompts is not None:
            chosen["prompts"] = read_prompts(self.prompts)
        return Plan(
            url=checked(url),
            baseline=checked(self.baseline) if self.baseline else None,
            weights=self.weights,
            draft=self.draft,
            model=self.model,
            baseline_model=self.baseline_model,
            chat=self.chat,
            length=self.max_new_tokens,
            temperatures=tuple(map(float, self.temperature)),
            top_p=self.top_p,
            top_k=self.top_k,
            together=self.together,
            bias=self.bias,
            level=self.level,
            most=self.max_tokens,
            concurrency=tuple(map(int, self.concurrency.split(","))),
            requests=self.requests,
            objectives=Objectives.parse(self.slo) if self.slo else None,
            seed=self.seed,
            limits=Limits(timeout=self.timeout, retries=self.retries),
            **chosen,
        )


OF_CHECK = options_of(CheckOptions)
