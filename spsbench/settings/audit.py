"""What an audit of a pair is asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from spsbench.settings.option import AUDIT, Check, Option, between
from spsbench.settings.setting import Setting, settings_of

MOST = 10**9
BIAS = Check(lambda bias: 0 < bias < 1, "above 0 and below 1")
LEVEL = Check(lambda level: 0 < level <= 0.1, "above 0, at most 0.1")
COUNT = between(1, MOST, "1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Prompts, the bias to be caught, and when to end."""

    task: Annotated[
        tuple[str, ...],
        Option(
            "Where prompts come from, such as jsonl:path=FILE; repeatable.",
            AUDIT,
            shown="humaneval and xsum:data=mini",
        ),
    ] = ()
    prompts: Annotated[int, Option("How many, at most.", AUDIT, COUNT)] = 40
    bias: Annotated[float, Option("The bias to be caught.", AUDIT, BIAS)] = 0.02
    level: Annotated[
        float, Option("Chance of a false alarm, of the whole audit.", AUDIT, LEVEL)
    ] = 1e-3
    max_tokens: Annotated[int, Option("Of SpS; then the audit ends as it is.", AUDIT, COUNT)] = (
        200_000
    )
    workers: Annotated[
        int | None,
        Option(
            "Processes.",
            AUDIT,
            between(1, 1024),
            shown="cores, for small models on a CPU",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The audit of a run on disk."""

    bias: Annotated[
        float | None,
        Option("The bias to be caught.", AUDIT, BIAS, shown="what the length allows"),
    ] = None
    level: Annotated[
        float, Option("Chance of a false alarm, of the whole audit.", AUDIT, LEVEL)
    ] = 1e-3
    max_tokens: Annotated[int | None, Option("Of each method.", AUDIT, COUNT, shown="all")] = None


OF_AUDIT: Mapping[str, Setting] = {each.name: each for each in settings_of(Audit)}
"""Name -> setting, of an audit of a pair."""
OF_REPLAY: Mapping[str, Setting] = {each.name: each for each in settings_of(Replay)}
"""Of an audit of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenAsked:
    """Expected acceptance of a head: where it is kept, and along which texts."""

    golden: Annotated[
        str, Option("File of expected acceptance: written if it is not there.", AUDIT)
    ] = "golden.json"
    log: Annotated[
        str | None, Option("Log or metrics of another engine, to be compared.", AUDIT)
    ] = None
    task: Annotated[
        tuple[str, ...],
        Option(
            "Where prompts come from, such as jsonl:path=FILE; repeatable.",
            AUDIT,
            shown="humaneval and xsum:data=mini",
        ),
    ] = ()
    prompts: Annotated[int, Option("How many, at most.", AUDIT, COUNT)] = 8
    tokens: Annotated[int, Option("Of each text.", AUDIT, COUNT)] = 48


OF_GOLDEN: Mapping[str, Setting] = {each.name: each for each in settings_of(GoldenAsked)}
"""Of golden acceptance."""
