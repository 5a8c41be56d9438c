"""Help, and the version."""

import pytest

from tests.oracles.command import Ran


def test_no_arguments_show_the_help(sps):
    ran = sps()
    assert (ran.code, ran.err) == (2, "")
    assert "generate" in ran.out


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_in_both_ways(sps, flag):
    for command in ((), ("generate",), ("list",), ("doctor",)):
        ran = sps(*command, flag)
        assert (ran.code, ran.err) == (0, "")
        assert "Usage" in ran.out


def test_the_version(sps):
    assert sps("--version") == Ran(0, "sps 0.1.0\n", "")
