"""What cannot be meant ends with one line and 2, before a model or torch is touched."""

import pytest

from spsbench.errors import Exit
from tests.oracles.command import Ran

HI = ("generate", "hi")


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    "arguments",
    [
        *(("-k", "-1"), ("-k", "four"), ("-k", "4", "--schedule", "constant"), ("-n", "many")),
        *(("--threads", "0"), ("--system", "Be brief."), ("--compare", "-k", "0")),
        *(("--prompt-file", "x.txt"), ("--truncate", "right"), ("--nothing",), ("more",)),
    ],
)
def test_one_line_and_two(sps, arguments):
    ran = sps(*HI, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1


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


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("generate", "hi", "--parallel", "tp:4"), Exit.DATA),
        (("generate", "hi", "--parallel", "tp:2", "--target", "./none"), Exit.MISSING),
        (("bench", "latency", "--parallel", "tp:4"), Exit.DATA),
        (("verify", "pair", "--draft-parallel", "tp:5"), Exit.DATA),
    ],
)
def test_ranks_that_cannot_be_are_refused_before_any_is_started(arguments, code, sps, monkeypatch):
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch", lambda *_: pytest.fail("started")
    )
    ran = sps(*arguments)
    assert (ran.code, ran.err.count("\n")) == (code, 1)
