"""Acceptance by position in the logs and metrics of other engines."""

import json
import re
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError
from spsbench.hardware.files import read_file

LIMIT = 64 << 20  # bytes
LINE = re.compile(r"[Pp]er-position acceptance rate:\s*([0-9.,\s]+)")
TOTALS = ("num_accepted_tokens_per_pos", "num_drafts")


def rates_in(path: Path) -> list[float]:
    """Of all drafts the share whose i-th token was kept, the newest that a file tells.

    It is vLLM's log ("Per-position acceptance rate: 0.8, 0.6, ..."), or JSON: a list of such
    shares, or an object with vLLM's counters `num_accepted_tokens_per_pos` and `num_drafts`.

    Raises:
        MissingError: no such file.
        DataError: it tells no such shares.
    """
    try:
        text = read_file(path, LIMIT).decode(errors="replace")
    except OSError as error:
        raise MissingError(
            f"no log ({path}: {error.strerror}): expected a file. Check --log"
        ) from error
    found = LINE.findall(text)
    rates = numbers(found[-1].split(",")) if found else from_json(text)
    if not rates or any(not 0 <= rate <= 1 for rate in rates):
        raise DataError(
            f"no acceptance by position ({path}): expected a line 'Per-position acceptance rate: "
            "0.8, 0.6', or JSON with num_accepted_tokens_per_pos and num_drafts. Check --log"
        )
    return rates


def from_json(text: str) -> list[float]:
    """The shares of a list, or those of two counters; none where neither is there."""
    try:
        values: Any = json.loads(text)
    except ValueError:
        return []
    if isinstance(values, list):
        return numbers(values)
    if not isinstance(values, dict) or not all(name in values for name in TOTALS):
        return []
    counts, drafts = numbers(values[TOTALS[0]]), numbers([values[TOTALS[1]]])
    return [count / drafts[0] for count in counts] if drafts and drafts[0] > 0 else []


def numbers(values: Any) -> list[float]:
    """As floats; none where one is no number."""
    try:
        return [float(value) for value in values if str(value).strip()]
    except (TypeError, ValueError):
        return []
