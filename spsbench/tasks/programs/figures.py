"""Verdicts -> counts and pass@k, with both intervals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spsbench.metrics.intervals import Estimate
from spsbench.sandbox.levels import ProgramVerdict
from spsbench.tasks.metrics.passk import K, Passes, over_problems, over_samples
from spsbench.tasks.programs.answer import NOTHING
from spsbench.tasks.programs.log import Judged, Settings

PassAt = Mapping[int, tuple[Estimate, Estimate] | None]
"""k -> the estimate with its interval over problems, and over samples; None: too few samples."""


def counts(judged: Iterable[Judged]) -> dict[str, int]:
    """How many programs had each verdict, all verdicts named."""
    found = Counter(each.verdict for each in judged)
    return {str(verdict): found[verdict] for verdict in ProgramVerdict}


def without(judged: Iterable[Judged]) -> int:
    """How many answers had no program: they count as failed, and are told apart."""
    return sum(NOTHING in each.detail for each in judged)


def tallies(judged: Iterable[Judged]) -> list[Passes]:
    """Programs and passes of each problem."""
    n: Counter[str] = Counter()
    c: Counter[str] = Counter()
    for each in judged:
        n[each.sample] += 1
        c[each.sample] += each.verdict is ProgramVerdict.PASSED
    return [Passes(n[sample], c[sample]) for sample in sorted(n)]


def pass_at(judged: Sequence[Judged], ks: Iterable[int] = K) -> PassAt:
    """pass@k of each k."""
    found = tallies(judged)
    fewest = min((tally.n for tally in found), default=0)
    return {
        k: (over_problems(found, k), over_samples(found, k)) if k <= fewest else None for k in ks
    }


def described(settings: Settings) -> str:
    """The settings in a line."""
    limits = settings["limits"]
    return (
        f"sandbox {settings['sandbox']} ({settings['held']}), {limits['timeout']:g} s and "
        f"{limits['memory']} MiB a program, Python {settings['interpreter']}, "
        f"programs by rule {settings['rule']}"
    )


def shown(estimates: PassAt) -> list[str]:
    """`pass@1 0.3700 [0.31, 0.43] over problems, [0.36, 0.38] over samples`, one a k."""
    lines = []
    for k, pair in estimates.items():
        if pair is None:
            lines.append(f"pass@{k} n/a: fewer than {k} samples of a problem")
        else:
            problems, samples = (_interval(estimate) for estimate in pair)
            mean = f"pass@{k} {pair[0].mean:.4f}"
            lines.append(f"{mean}, 95 % {problems} over problems, {samples} over samples")
    return lines


def plain(judged: Sequence[Judged], ks: Iterable[int] = K) -> dict[str, Any]:
    """Counts and pass@k as JSON."""
    estimates = {
        f"pass@{k}": None
        if pair is None
        else {"over_problems": pair[0]._asdict(), "over_samples": pair[1]._asdict()}
        for k, pair in pass_at(judged, ks).items()
    }
    found = {"programs": len(judged), "verdicts": counts(judged), "pass": estimates}
    return found | ({"without_program": n} if (n := without(judged)) else {})


def told(found: Mapping[str, int]) -> str:
    """The verdicts that occur: `passed 12, failed 3`."""
    return ", ".join(f"{name} {count}" for name, count in found.items() if count) or "none"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "[n/a]"
    return f"[{estimate.low:.4f}, {estimate.high:.4f}]"
