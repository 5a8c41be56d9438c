"""`--format json`: one object, with the text exactly as it is."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from spsbench.api.comparison import Comparison
from spsbench.api.text import Arm
from spsbench.cli.doctor.examine import environment
from spsbench.cli.generate.advice import advice
from spsbench.settings.records import SCHEMA


def payload(
    arm: Arm,
    engines: Mapping[str, str],
    comparison: Comparison | None = None,
    *,
    prompt: str = "",
    digests: Mapping[str, str] | None = None,
) -> str:
    """ASCII JSON in one line; a number that is none would be an error."""
    content = {
        "schema": SCHEMA,
        "prompt_sha256": sha256(prompt.encode()).hexdigest(),
        "models": dict(digests or {}),
        "prompt_tokens": arm.record.prompt_tokens,
        **generated(arm),
        "settings": arm.cell.to_json(),
        "engines": dict(engines),
        **(compared(comparison) if comparison else {}),
        "advice": list(advice(arm, comparison)),
        "environment": environment(),
    }
    return json.dumps(content, ensure_ascii=True, allow_nan=False)


def generated(arm: Arm) -> dict[str, Any]:
    """What an arm wrote and how long it took."""
    return {
        "tokens": arm.record.tokens,
        "text": arm.record.text,
        "finish_reason": arm.record.finish,
        "rounds": [r._asdict() for r in arm.record.rounds],
        "metrics": asdict(arm.figures),
    }


def compared(comparison: Comparison) -> dict[str, Any]:
    """The other arm, and how the two relate."""
    gained, found = comparison.speedup, comparison.divergence
    return {
        "ars": generated(comparison.ars),
        "speedup": gained._asdict() if gained else None,
        "loaded": comparison.loaded,
        "identical": comparison.identical,
        "divergence": found._asdict() if found else None,
    }
