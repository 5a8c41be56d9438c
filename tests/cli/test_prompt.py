"""Where prompts come from, and what is no prompt."""

import sys

import pytest

from spsbench.cli import generate as prompts
from spsbench.cli.generate import read_prompt
from spsbench.errors import Exit
from tests.oracles.command import Stdin


def given(monkeypatch, content):
    monkeypatch.setattr("sys.stdin", Stdin(content or b"", terminal=content is None))


def test_the_argument_is_the_prompt_whatever_stdin_has(monkeypatch):
    given(monkeypatch, b"other")
    assert read_prompt("text", None) == "text"
    assert read_prompt(" ", None) == " "


def test_stdin_is_read_as_it_is(monkeypatch):
    for argument, file in (("-", None), (None, None), (None, "-")):
        given(monkeypatch, "é\r\n".encode())
        assert read_prompt(argument, file) == "é\r\n"


def test_at_a_terminal_nothing_is_read_unasked(monkeypatch):
    given(monkeypatch, None)
    assert read_prompt(None, None) is None


def test_a_file_is_read_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "p.txt").write_bytes(b"  a\r\n\n")
    assert read_prompt(None, str(tmp_path / "p.txt")) == "  a\r\n\n"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_prompt(None, "~/p.txt") == "  a\r\n\n"


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        *(((), None, Exit.USAGE), ((), b"", Exit.USAGE), (("-",), b"", Exit.USAGE)),
        *(
            ((), b"\xff\xfe", Exit.DATA),
            (("-k", "0"), b"a\0b", Exit.DATA),
            (("\udcff",), None, Exit.DATA),
        ),
    ],
)
def test_what_is_no_prompt(sps, arguments, stdin, code):
    ran = sps("generate", *arguments, stdin=stdin)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1


def test_an_endless_source_is_cut_off(sps):
    for ran in (
        sps("generate", "--prompt-file", "/dev/zero"),
        sps("generate", "-", stdin=b"a" * (prompts.LIMIT + 1)),
    ):
        assert ran.code == Exit.DATA
        assert [line for line in ran.err.splitlines() if not line.startswith("note: ")][1:] == []


def test_a_closed_stdin(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(prompts.DataError):
        read_prompt("-", None)
    assert read_prompt("text", None) == "text"
    assert sys.stdin is None
