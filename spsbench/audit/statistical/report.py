"""Findings as plain values for JSON: everything that the table and the plot show, and more."""

import math
from dataclasses import asdict
from typing import Any

from spsbench.audit.statistical.audit import AuditArm, Finding, tests
from spsbench.audit.statistical.betting import alarm
from spsbench.audit.statistical.greedy import Greedy

SHOWN = 20  # impossible tokens that are listed


def of_finding(found: Finding) -> dict[str, Any]:
    """A sampled audit."""
    return {
        "verdict": found.verdict.value,
        "line": found.line,
        "level": found.level,
        "alarm_log10": alarm(found.level) / math.log(10),
        "bias_caught_with_probability_0.99": found.claim,
        "bias_in_plain_sampling": found.shared,
        "controls": {
            "ars": of_arm(found.ars),
            "injected": asdict(found.control) if found.control else None,
        },
        "sps": of_arm(found.sps),
        "seconds": found.seconds,
    }


def of_arm(arm: AuditArm) -> dict[str, Any]:
    """One method's tokens."""
    return {
        "name": arm.name,
        "texts": arm.texts,
        "tokens": arm.tokens,
        "alarmed": arm.alarmed,
        "e_value_log10": arm.money.peak / math.log(10),
        "loudest": arm.money.loudest if arm.tokens else None,
        "band": arm.band.tolist(),
        "tests": [asdict(test) | {"bias": test.bias} for test in tests(arm.evidence)],
        "impossible": [asdict(each) for each in arm.impossible[:SHOWN]],
        "impossible_count": len(arm.impossible),
        "curve": arm.thinned(),
    }


def of_greedy(found: Greedy) -> dict[str, Any]:
    """A greedy audit."""
    return {
        "verdict": found.verdict.value,
        "line": found.line,
        "counts": {kind.value: count for kind, count in found.counts.items()},
        "controls": {"ars_repeats": found.repeated, "planted_bug_caught": found.planted},
        "prompts": [
            {
                "name": each.name,
                "kind": each.kind.value,
                "divergence": each.divergence._asdict() if each.divergence else None,
                "logits": each.logits,
            }
            for each in found.compared
        ],
        "seconds": found.seconds,
    }
