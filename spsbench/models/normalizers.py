"""Rules of a tokenizer.json that rewrite text: how much longer it may become."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.models.jsonfile import read_object

SECTIONS = ("normalizer", "pre_tokenizer", "decoder")
MOST = 1000  # times the length of a text
LIMIT = 200 << 20  # bytes of the file


def check_growth(folder: Path) -> None:
    """Refuse a tokenizer.json whose `Replace` rules, one after another, make a text without end.

    Forty rules that double a letter would need 2^40 bytes, and no interrupt reaches them.

    Raises:
        DataError: a section by which a text may become more than `MOST` times as long.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    rules = read_object(path, LIMIT)
    for section in SECTIONS:
        times = 1.0
        for rule in _replacements(rules.get(section)):
            times *= _growth(rule)
            if times > MOST:
                raise DataError(
                    f"the {section} makes a text more than {MOST} times as long ({path}): expected "
                    "Replace rules that keep it near its length. Fetch the model again"
                )


def _replacements(rules: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(rules, Mapping):
        if rules.get("type") == "Replace":
            yield rules
        for each in rules.values():
            yield from _replacements(each)
    elif isinstance(rules, list):
        for each in rules:
            yield from _replacements(each)


def _growth(rule: Mapping[str, Any]) -> float:
    """How many times as long a rule may make a text: at least 1, as not all of it need match."""
    pattern, content = rule.get("pattern"), rule.get("content")
    if not isinstance(content, str) or not isinstance(pattern, Mapping):
        return 1.0  # nothing that the tokenizer reads
    if isinstance(text := pattern.get("String"), str):
        return max(1.0, len(content) / len(text)) if text else len(content) + 1.0
    try:
        empty = re.search(str(pattern.get("Regex")), "") is not None
    except (re.error, RecursionError, OverflowError):
        empty = True  # not Python's kind of pattern
    return max(1.0, len(content) + empty)
