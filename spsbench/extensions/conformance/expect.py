"""Expectations of a check, kept in a TOML file, and its results in the forms of pipelines.

`checked` is the result of `sps check`. A later one is worse where the verdict of a part is, or
where the share of drafts that are accepted at some position left the interval of chance.
"""

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal
from xml.etree.ElementTree import Element, SubElement, tostring

import msgspec

from spsbench.errors import DataError, first_line
from spsbench.store.atomic import check_replaceable, replace_file
from spsbench.untrusted import read_toml
from spsbench.version import __version__

HELD, BIAS = "held", "bias found"
VERDICTS = (HELD, "not audited", "cannot be decided", "not valid", "refused", "missing", BIAS)
DEPENDENT = 1.5  # variance of rounds that share texts, in that of independent ones


class Expectation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The file of an expectation.

    Args:
        level: probability that acceptance alarms while nothing changed.
        versions: of this package, the engine and the model, for readers.
        parts: verdict of each part.
        power: the bias that sampled text would have shown with probability 0.99, for readers.
        reached: rounds, then those that accepted position 1, 2, ...; empty: not known.
        tau: tokens a round, for readers.
    """

    level: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    versions: dict[str, str]
    parts: dict[str, Literal[VERDICTS]]  # type: ignore[valid-type]  # best first
    power: float | None = None
    reached: list[int] = []
    tau: float | None = None


def parts_of(checked: Any) -> dict[str, tuple[str, str]]:
    """Return part -> verdict and a line, of planned parts but speed; undecided without a result."""
    parts = {"law": checked.law, "greedy": checked.greedy, **checked.modes}
    lines = {name: (str(part.verdict), part.line) for name, part in parts.items() if part}
    lines |= dict.fromkeys(checked.refused, ("refused", "the server refuses its requests"))
    undecided = "cannot be decided", "the server gives too little"
    return {n: lines.get(n, undecided) for n in checked.plan.parts if n != "speed"}


def expectation_of(checked: Any) -> Expectation:
    """Return versions, verdicts and, if known, power, counts by position and tau of a `Checked`."""
    versions = {"sps": __version__, "engine": checked.engine, "model": checked.model}
    parts = {name: verdict for name, (verdict, _) in parts_of(checked).items()}
    current = Expectation(checked.plan.level, versions, parts)
    current.power = checked.law and checked.law.finding.claim
    if (drafts := checked.acceptance) and drafts.rounds and drafts.kept:
        current.reached = [int(count) for count in (drafts.rounds, *drafts.kept)]
        current.tau = 1 + drafts.accepted / drafts.rounds
    return current


def read_expectation(path: Path) -> Expectation:
    """Read the file of an expectation; SpsError: as `read_toml`, DataError: other fields in it."""
    what = "an expectation that `write_expect` wrote"
    try:
        return msgspec.convert(read_toml(path, what), Expectation)
    except msgspec.ValidationError as error:
        reason = first_line(error).replace("`", "")
        raise DataError(f"{reason} ({path}): expected {what}") from error


def deviations(expected: Expectation, current: Expectation) -> list[str]:
    """Return a line for each verdict that is worse, and each position out of its interval.

    A part, or all acceptance, missing now is worse; else only what both have is compared.
    """
    lines = []
    for part, verdict in expected.parts.items():
        now = current.parts.get(part, "missing")
        if VERDICTS.index(now) > VERDICTS.index(verdict):
            lines.append(f"{part}: {now}, expected {verdict}")
    if expected.reached and not current.reached:
        lines.append("acceptance: not known, expected counts by position")
    positions = list(zip(pairwise(expected.reached), pairwise(current.reached), strict=False))
    for number, ((n, kept), (n2, kept2)) in enumerate(positions, 1):
        width = chance(n, kept, n2, expected.level / len(positions))
        if n and n2 and abs(kept2 / n2 - kept / n) > width:
            line = f"position {number}: accepted {kept2 / n2:.3f} of {n2}, expected "
            lines.append(f"{line}{kept / n:.3f} within {width:.3f}")
    return lines


def chance(n: int, kept: int, n2: int, level: float) -> float:
    """Return how far `kept` of `n` and a share of `n2` may differ; `level`: the chance of more."""
    share = (min(kept, n) + 1) / (n + 2)  # neither 0 nor 1, whose variance would be 0
    variance = DEPENDENT * share * (1 - share) * (1 / max(n, 1) + 1 / max(n2, 1))
    return NormalDist().inv_cdf(1 - level / 2) * math.sqrt(variance) + 1 / max(min(n, n2), 1)


def deliver(
    expect: Path | None, write_expect: Path | None, junit: Path | None
) -> Callable[[Any], tuple[list[str], dict[str, Any]]]:
    """Read what is expected, and return what writes the other files when a check is done.

    It takes a check's result, and returns what is worse than expected (nothing without `expect`),
    and a log of SARIF. SpsError, here: `expect` cannot be read, or another file not be written.
    """
    expected = None if expect is None else read_expectation(expect)
    for path in filter(None, (write_expect, junit)):
        check_replaceable(path)

    def written(checked: Any) -> tuple[list[str], dict[str, Any]]:
        """Write JUnit and expectation files asked for; return `deviations` and the SARIF log."""
        current = expectation_of(checked)
        wrong = [] if expected is None else deviations(expected, current)
        if junit is not None:
            replace_file(junit, as_junit(checked, wrong))
        if write_expect is not None:
            values = msgspec.to_builtins(current)
            tables = {name: values.pop(name) for name in ("versions", "parts")}
            lines = [f"{name} = {json.dumps(v)}" for name, v in values.items() if v is not None]
            for name, table in tables.items():
                lines += ["", f"[{name}]"]
                lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
            replace_file(write_expect, ("\n".join(lines) + "\n").encode())
        return wrong, as_sarif(checked, wrong)

    return written


def as_junit(checked: Any, wrong: Sequence[str]) -> bytes:
    """Return JUnit's XML: a case a part, and one of `wrong`, the `deviations`; only bias fails."""
    suite = Element("testsuite", name="sps check", errors="0", time=f"{checked.seconds:.3f}")
    kinds = []
    for name, verdict, line in results_of(checked, wrong):
        case = SubElement(suite, "testcase", classname="sps.check", name=name)
        kinds.append({HELD: "passed", BIAS: "failure"}.get(verdict, "skipped"))
        if verdict != HELD:
            SubElement(case, kinds[-1], message=f"{verdict}: {line}")
    suite.attrib |= {"tests": str(len(kinds)), "skipped": str(kinds.count("skipped"))}
    suite.set("failures", str(kinds.count("failure")))
    return bytes(tostring(suite, encoding="utf-8", xml_declaration=True))


def as_sarif(checked: Any, wrong: Sequence[str]) -> dict[str, Any]:
    """Return a log of SARIF 2.1.0: a note for each part that did not hold, an error where biased.

    The expectation counts as a part, which is biased where something is worse.
    """
    results = [
        {
            "ruleId": f"sps/{name}",
            "level": "error" if verdict == BIAS else "note",
            "message": {"text": f"{checked.url}: {verdict}: {line}"},
        }
        for name, verdict, line in results_of(checked, wrong)
        if verdict != HELD
    ]
    rules = [{"id": rule} for rule in dict.fromkeys(str(result["ruleId"]) for result in results)]
    driver = {"name": "sps check", "version": __version__, "rules": rules}
    runs = [{"tool": {"driver": driver}, "results": results}]
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": runs}


def results_of(checked: Any, wrong: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return name, verdict and printable line of each part, and last of the expectation.

    The expectation held where nothing is `wrong`, also where nothing was expected.
    """
    results = [(name, *result) for name, result in parts_of(checked).items()]
    results.append(("expectation", BIAS if wrong else HELD, "; ".join(wrong)))
    return [
        (name, verdict, "".join(c if c.isprintable() else " " for c in line))
        for name, verdict, line in results
    ]
