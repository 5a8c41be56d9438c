"""Origins as colours, as marks, or not at all."""

import pytest

from spsbench.cli.output.screen import Paint, Screen, paint
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
    for how, marks in ((Paint.COLOUR, "green magenta cyan"), (Paint.MARKS, "[~ ~] [+ +]")):
        legend = Screen(how).legend()
        assert legend is not None
        assert all(mark in legend for mark in marks.split())


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
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert paint(color) is how
