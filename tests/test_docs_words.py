"""Documents, help, `sps list` and errors speak the field's words, and none of an older dialect."""

import re
from pathlib import Path

import pytest

from spsbench.registry import KINDS, entries
from tests.parsed import commands, strings

ROOT = Path(__file__).parents[1]
DIALECT = re.compile(
    r"\bby rule\b"  # deterministic
    r"|\blaws? of\b|\w's laws?\b"  # distribution
    r"|\b(?:the|a|another|its|same|dense|raw|joint) laws?\b"
    r"|\bthe text's own\b|\bwhat the text (?:already )?says\b|\bby how often\b"
    r"|\ba line (?:says|said|tells|has|counts|for each)\b"  # printed
    r"|\b(?:is|are|was|were|be) (?:told|said)\b|\btold\b"
    r"|\bbeside\b"  # compared with, next to
    r"|\bfore(?:told|tell|tells|seen)\b|\breckons?\b|\bhoped\b"  # predicted
    r"|(?-i:\barms?\b)"  # method, baseline; Arm is a processor
    r"|\bcoins?\b|\bloudest\b|\bwealth\b|\bsuspects?\b"  # acceptance probability, alternative
    r"|\bin turns?\b|\b(?:takes?|each) turns?\b|\bturns in which\b"  # interleaved
    r"|\blessons?\b|\bteach(?:es)?\b|\btaught\b"
    r"|\bkept whole\b|\bnone beyond\b"  # fully accepted
    r"|\bunder load\b",  # on a busy machine
    re.IGNORECASE,
)


def found_in(text):
    """Dialect in a text, with the words around it; code and addresses keep names."""
    text = re.sub(r"\s+", " ", re.sub(r"`[^`\n]+`|\]\([^)\n]+\)", "``", text))
    return [text[max(0, m.start() - 40) : m.end() + 30] for m in DIALECT.finditer(text)]


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_have_no_dialect(page):
    assert found_in(page.read_text()) == []


def test_help_has_no_dialect():
    texts = {
        name: " ".join(
            [command.help or "", *(getattr(o, "help", "") or "" for o in command.params)]
        )
        for name, command in commands()
    }
    assert len(texts) > 12
    assert {name: found_in(text) for name, text in texts.items() if found_in(text)} == {}


def test_summaries_of_plug_ins_have_no_dialect():
    summaries = {entry.name: entry.summary for kind in KINDS for entry in entries(kind)}
    assert {name: found_in(text) for name, text in summaries.items() if found_in(text)} == {}


NAMES = {"arms", "hoped", "loudest", "beside/", "lesson.js", "Coins", "arm="}  # keys, files, types


def test_messages_have_no_dialect():
    found = {
        (str(path.relative_to(ROOT)), words)
        for path in (ROOT / "spsbench").rglob("*.py")
        for _, text in strings(path)
        if text not in NAMES
        for words in found_in(text)
    }
    assert found == set()
