"""Other people's text in a page: as data that cannot end its element, as text that is no markup."""

import html
import json
from collections.abc import Sequence
from typing import Any

from spsbench.reports.text import visible

LONGEST = 400  # characters of one piece that a page shows
NEVER = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""What could end a script element, or begin a comment in one; in JSON all of it is in strings."""


def embedded(data: Any) -> str:
    """ASCII JSON for a `<script type="application/json">`; what it holds can never end it.

    Raises:
        ValueError: a number that is not finite.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in NEVER.items():
        text = text.replace(character, escape)
    return text


def markup(text: object) -> str:
    """Text between tags or in a quoted attribute."""
    return html.escape(visible(str(text)), quote=True)


def labels(names: Sequence[str], longest: int) -> list[str]:
    """Names as a page shows them: cut at the end only if they stay as distinct as they are.

    Those that would not begin where they part; a number tells apart what is alike so far still.
    """
    made = [shown(name, longest) for name in names]
    several = len(set(names))
    if len(set(made)) < several:
        pairs = enumerate(zip(min(names), max(names), strict=False))
        parted = next((at for at, (one, other) in pairs if one != other), 0)
        begin = max(0, parted - longest // 4)
        made = [shown(f"…{name[begin:]}", longest) for name in names]
    if len(set(made)) < several:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}
        made = [f"{short} ({numbers[name]})" for short, name in zip(made, names, strict=True)]
    return made


def shown(text: str, longest: int = LONGEST) -> str:
    r"""A piece of a generation: line breaks stay, all else that hides or turns is an escape.

    Of a longer one the beginning, and how long it is.
    """
    cut = text if len(text) <= longest else text[:longest]
    safe = "".join(c if c in "\n\t" else visible(c) for c in cut)
    return safe if cut is text else f"{safe}… ({len(text):,} characters)"
