"""Nothing that moves the cursor or hides text gets through."""

import io
import unicodedata

import pytest

from spsbench.cli.output.terminal import is_terminal, one_line, safe_text, show_what_can_be_shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本語 👩", "plain é 日本語 👩"),
        ("line\n\ttab", "line\n\ttab"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x00\x08\r\x0b\x0c\x7f", "\\x00\\x08\\r\\x0b\\x0c\\x7f"),
        ("\x85\x9b31m", "\\x85\\x9b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("a\u200bb\u200dc\ufeff\u00ad", "a\\u200bb\\u200dc\\ufeff\\xad"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("[red]x[/red] [/x]", "[red]x[/red] [/x]"),
        ("no\u00a0break", "no\u00a0break"),
        ("", ""),
    ],
)
def test_what_is_shown(text, shown):
    assert safe_text(text) == shown


def test_every_control_and_format_character_is_escaped():
    for number in range(0x110000):
        character = chr(number)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t":
            assert safe_text(character).isascii()
            assert safe_text(character).startswith("\\")


def test_one_line_is_one_line():
    assert one_line("a\nb\r\nc\x1b") == "a b\\r c\\x1b"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_an_encoding_lacks_is_escaped(encoding, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    show_what_can_be_shown()
    print("→日")
    assert raw.getvalue() == b"\\u2192\\u65e5\n"


def test_a_closed_stream_is_no_terminal():
    closed = io.StringIO()
    closed.close()
    assert not is_terminal(closed)
    assert not is_terminal(None)
