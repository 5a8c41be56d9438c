"""`sps lm-eval` without the harness: its arguments, and what a task asks of a generation."""

import pytest

from spsbench.errors import Exit, UsageError
from spsbench.extensions.lm_eval import command
from spsbench.extensions.lm_eval.command import generation_options, speculation_line
from spsbench.settings.records import RoundRecord


def test_a_harness_that_is_not_installed_is_named(sps, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    ran = sps("lm-eval", "--tasks", "gsm8k", "--limit", "5")
    assert ran.code not in (Exit.OK, Exit.USAGE)
    assert "pip install lm_eval" in ran.err


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (["--tasks", "gsm8k"], ["--tasks", "gsm8k", "--model", "sps"]),
        (["--tasks", "gsm8k", "--model", "hf"], None),
        (
            ["--model_args", "k=4", "--tasks=a"],
            ["--model_args", "k=4", "--tasks=a", "--model", "sps"],
        ),
        (["-t", "gsm8k"], ["-t", "gsm8k", "--model", "sps"]),
        (["-t", "gsm8k", "-m", "hf"], None),
        (["ls", "tasks"], None),
    ],
)
def test_the_model_is_ours_unless_another_is_named(arguments, runs):
    assert command.with_model(arguments) == (runs or arguments)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, {"max_new_tokens": 256, "temperature": 0.0}),
        (
            {"until": ["\n", ""], "max_gen_toks": 9},
            {"max_new_tokens": 9, "temperature": 0.0, "stop": ["\n"]},
        ),
        (
            {"temperature": 0.7, "top_p": 0.9},
            {"max_new_tokens": 256, "temperature": 0.7, "top_p": 0.9},
        ),
        (
            {"num_beams": 1, "repetition_penalty": 1.0, "until": None, "top_k": -1, "seed": 3}
            | {"do_sample": True},
            {"max_new_tokens": 256, "seed": 3},
        ),
        (
            {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "presence_penalty": 0.5},
            {"max_new_tokens": 256, "temperature": 0.0, "repetition_penalty": 1.1}
            | {"no_repeat_ngram": 3, "presence_penalty": 0.5},
        ),
        ({"do_sample": False, "temperature": 0.7}, {"max_new_tokens": 256, "temperature": 0.0}),
    ],
)
def test_a_task_s_options_become_those_of_a_generation(asked, options):
    assert generation_options(asked) == options | {"truncate": True}


def test_an_option_that_is_not_known_is_refused():
    with pytest.raises(UsageError):
        generation_options({"num_beams": 4})


def test_tau_and_alpha_are_sums_over_all_rounds():
    rounds = [
        RoundRecord(2, 2, 2, 3, 1.5, 0.1, 0.0, 0.0),
        RoundRecord(2, 1, 0, 1, 0.25, 0.1, 0.0, 0.0),
        RoundRecord(0, 0, 0, 1, 0.0, 0.1, 0.0, 0.0),
    ]
    line = "speculation: tau 1.67 tokens a round over 3 rounds"
    assert speculation_line(rounds) == f"{line}, alpha 0.583"  # 7/4 over 3
    assert speculation_line([r._replace(overlap=None) for r in rounds]) == line
    assert speculation_line([*rounds, rounds[0]._replace(emitted=9, passes=0)])[: len(line)] == line
    assert speculation_line([]) == ""
