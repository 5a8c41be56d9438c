"""Help, and the version."""

import pytest

import spsbench
from tests.oracles.command import Ran


def test_no_arguments_show_the_help(sps):
    ran = sps()
    assert (ran.code, ran.err) == (2, "")
    assert "generate" in ran.out


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_in_both_ways(sps, flag):
    for command in ((), ("list",), ("doctor",)):
        ran = sps(*command, flag)
        assert (ran.code, ran.err) == (0, "")
        assert "Usage" in ran.out


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("command", "lines"),
    [("generate", 60), ("bench", 60), ("plan", 60), ("verify pair", 48), ("train head", 48)],
)
def test_help_fits_and_help_all_has_every_option(sps, monkeypatch, command, lines):
    monkeypatch.setenv("COLUMNS", "80")
    short, full = sps(*command.split(), "--help"), sps(*command.split(), "--help-all")
    assert (short.code, full.code) == (0, 0)
    assert short.out.count("\n") <= lines
    assert max(map(len, short.out.splitlines())) <= 80
    assert ("--allow-pickle" in full.out, "--allow-pickle" in short.out) == (True, False)


def test_the_version(sps):
    assert sps("--version") == Ran(0, f"sps {spsbench.__version__}\n", "")
