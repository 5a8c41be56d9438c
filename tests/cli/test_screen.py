"""Origins as colours, as marks, or not at all."""

import io
import unicodedata
from contextlib import redirect_stdout
from io import StringIO

import pytest

from spsbench.cli.answers import Paint, Screen, choose_paint
from spsbench.cli.terminal import BOLD, is_terminal, safe_text, say, show_what_can_be_shown
from spsbench.loop.text import Origin, Piece

PIECES = [
    Piece("ab", Origin.ACCEPTED),
    Piece("c", Origin.RECOVERED),
    Piece("d", Origin.BONUS),
    Piece("e", Origin.PLAIN),
]


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        (Paint.NONE, "abcde\n"),
        (Paint.MARKS, "ab[~c~][+d+]e\n"),
        (Paint.COLOUR, "\x1b[32mab\x1b[0m\x1b[35mc\x1b[0m\x1b[36md\x1b[0me\n"),
    ],
)
def test_the_origins_are_shown(how, shown, capsys):
    screen = Screen(how)
    for piece in PIECES:
        screen.show([piece])
    screen.end()
    assert capsys.readouterr().out == shown


def test_model_text_is_escaped_in_every_way(capsys):
    for how in Paint:
        Screen(how).show([Piece("\x1b[2J[/x]", Origin.PLAIN)])
    assert capsys.readouterr().out == "\\x1b[2J[/x]" * 3


def test_no_newline_is_added_to_one_or_to_nothing(capsys):
    screen = Screen(Paint.NONE)
    screen.end()
    screen.show([Piece("", Origin.PLAIN)])
    screen.end()
    screen.show([Piece("a\n", Origin.PLAIN)])
    screen.end()
    screen.end()
    assert capsys.readouterr().out == "a\n"


def test_every_way_but_plain_text_has_a_legend():
    assert Screen(Paint.NONE).legend() is None
    assert "magenta" in Screen(Paint.COLOUR).legend()
    assert "[~" in Screen(Paint.MARKS).legend()


@pytest.mark.parametrize(
    ("color", "terminal", "env", "how"),
    [
        ("auto", True, {}, Paint.COLOUR),
        ("auto", True, {"NO_COLOR": "1"}, Paint.MARKS),
        ("auto", True, {"TERM": "dumb"}, Paint.MARKS),
        ("auto", False, {}, Paint.NONE),
        ("never", True, {}, Paint.MARKS),
        ("never", False, {}, Paint.NONE),
        ("always", False, {"NO_COLOR": "1"}, Paint.COLOUR),
    ],
)
def test_the_flag_the_terminal_and_the_environment_decide(color, terminal, env, how, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(StringIO()) as out:
        out.isatty = lambda: terminal
        assert choose_paint(color) is how


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本語 👩", "plain é 日本語 👩"),
        ("line\n\ttab", "line\n\ttab"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x00\x08\r\x0b\x0c\x7f", "\\x00\\x08\\r\\x0b\\x0c\\x7f"),
        ("a\u200bb\u200dc\ufeff\u00ad", "a\\u200bb\\u200dc\\ufeff\\xad"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\U000e0041", "\\U000e0041"),
        ("[red]x[/red] [/x]", "[red]x[/red] [/x]"),
        ("no\u00a0break", "no\u00a0break"),
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


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_an_encoding_lacks_is_escaped(encoding):
    raw = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(raw, encoding=encoding, write_through=True)):
        show_what_can_be_shown()
        print("→日")
        assert raw.getvalue() == b"\\u2192\\u65e5\n"


def test_a_closed_stream_is_no_terminal():
    closed = io.StringIO()
    closed.close()
    assert not is_terminal(closed)
    assert not is_terminal(None)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_matters_is_not_dim(monkeypatch, capsys, terminal):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("spsbench.cli.terminal.is_terminal", lambda stream: terminal)
    say("loading")
    say("speed-up over ArS: 1.50x", BOLD)
    say("warning: other work kept this machine busy")
    codes = ("\x1b[2m", "\x1b[1m", "\x1b[33m") if terminal else ("", "", "")
    lines = capsys.readouterr().err.splitlines()
    assert [
        line.partition(word)[0] for line, word in zip(lines, ("load", "speed", "warn"), strict=True)
    ] == [*codes]
    assert all(line.endswith("\x1b[0m") == terminal for line in lines)
