"""What cannot be meant ends with one line and 2, before a model or torch is touched."""

import pytest

from spsbench.errors import Exit
from tests.cli.conftest import Ran

HI = ("generate", "hi")


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-k", "-1"), "--k is -1: expected 1..64, or 0 for auto-regressive sampling"),
        (("-k", "four"), "Invalid value for '--k' / '-k'"),
        (("-k", "4", "--schedule", "constant"), "--k 4 with --schedule constant"),
        (("-n", "many"), "Invalid value for '--max-new-tokens'"),
        (("--threads", "0"), "--threads is 0: expected 1..1024"),
        (("--system", "Be brief."), "--system without --chat"),
        (("--compare", "-k", "0"), "--compare with --k 0"),
        (("--prompt-file", "x.txt"), "PROMPT and --prompt-file x.txt: expected one prompt"),
        (("--truncate", "right"), "Invalid value for '--truncate'"),
        (("--nothing",), "No such option: --nothing"),
        (("more",), "Got unexpected extra argument"),
    ],
)
def test_one_line_and_two(sps, arguments, said):
    ran = sps(*HI, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {said}")
    assert ran.err.count("\n") == 1


def test_what_the_parts_refuse(generate, sps):
    for arguments, said in [
        (("--drafter", "beam"), "no drafter 'beam': expected one of model, tli, slem"),
        (("--drafter", "ngram"), "with --drafter ngram: that drafter uses no model"),
        (("--verifier", "sps:x=1"), "sps:x=1: sps has no 'x': expected no arguments"),
        (("--schedule", "constant:lookahead=many"), "lookahead is 'many': expected int"),
    ]:
        ran = generate("hi", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err


def test_no_arguments_show_the_help(sps):
    ran = sps()
    assert (ran.code, ran.err) == (2, "")
    assert "generate" in ran.out


def test_an_unknown_command_is_named(sps):
    assert sps("generat") == Ran(2, "", sps("generat").err)
    assert "generat" in sps("generat").err


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
    ("arguments", "line"),
    [
        (("generate", "hi", "--parallel", "tp:4"), "num_attention_heads is 6 ("),
        (("generate", "--parallel", "tp:300"), "num_attention_heads is 6 ("),
        (("generate", "hi", "--parallel", "tp:2", "--target", "./none"), "no model './none'"),
        (("bench", "latency", "--parallel", "tp:4"), "num_attention_heads is 6 ("),
        (("verify", "pair", "--draft-parallel", "tp:5"), "num_attention_heads is "),
    ],
)
def test_ranks_that_cannot_be_are_refused_before_any_is_started(
    arguments, line, sps, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch", lambda *_: pytest.fail("started")
    )
    ran = sps(*arguments)
    assert ran.code in (Exit.DATA, Exit.MISSING, Exit.USAGE)
    assert ran.err.startswith(f"error: {line}")
    assert ran.err.count("\n") == 1
