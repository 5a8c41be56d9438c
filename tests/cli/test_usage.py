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
    "command", ["generate", "bench", "plan", "check", "verify pair", "train head"]
)
def test_help_fits_and_help_all_has_every_option(sps, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    short, full = sps(*command.split(), "--help"), sps(*command.split(), "--help-all")
    assert (short.code, full.code) == (0, 0)
    assert short.out.count("\n") <= 48  # two screens
    assert max(map(len, short.out.splitlines())) <= 80
    assert full.out.count(" --") > short.out.count(" --")


def test_the_version(sps):
    assert sps("--version") == Ran(0, f"sps {spsbench.__version__}\n", "")
