"""Escape untrusted text for the page: JSON in a script element, text in markup."""

import html
import json
from collections.abc import Sequence
from typing import Any

from spsbench.reports.text import visible

LONGEST = 400  # characters of one piece of text on a page
NEVER = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""Characters that could end a script element or open a comment in one; JSON has them in strings."""


def embedded(data: Any) -> str:
    """Return ASCII JSON for a `<script type="application/json">` that cannot end the element.

    Raises:
        ValueError: a number that is not finite.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in NEVER.items():
        text = text.replace(character, escape)
    return text


def markup(text: object) -> str:
    """Escape text between tags or in a quoted attribute."""
    return html.escape(visible(str(text)), quote=True)


def labels(names: Sequence[str], longest: int) -> list[str]:
    """Truncate names for display; equal names stay equal and distinct names distinct.

    A name is cut at its end if the result stays unique, else its prefix common to all names is
    shortened; a number separates names that are still equal.
    """
    truncated = [shown(name, longest) for name in names]
    several = len(set(names))
    if len(set(truncated)) < several:
        pairs = enumerate(zip(min(names), max(names), strict=False))
        parted = next((at for at, (one, other) in pairs if one != other), 0)
        begin = max(0, parted - longest // 4)
        truncated = [shown(f"…{name[begin:]}", longest) for name in names]
    if len(set(truncated)) < several:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}
        truncated = [
            f"{short} ({numbers[name]})" for short, name in zip(truncated, names, strict=True)
        ]
    return truncated


def shown(text: str, longest: int = LONGEST) -> str:
    r"""Escape a piece of a generation: line breaks stay, invisible and bidi characters are escaped.

    Longer text is cut, and its length is appended.
    """
    cut = text if len(text) <= longest else text[:longest]
    safe = "".join(c if c in "\n\t" else visible(c) for c in cut)
    return safe if cut is text else f"{safe}… ({len(text):,} characters)"
