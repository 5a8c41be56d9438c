"""A conversation: what the model is given each turn, and what ends an answer or all of it."""

import pytest

from spsbench.errors import Exit
from spsbench.pair import pair as library


@pytest.fixture
def seen(monkeypatch):
    """The messages of every turn; the prompt that they make is always the same."""
    turns = []

    def ids_of(loaded, messages, *, chat, system):
        start = [said("system", system)] if system else []
        turns.append([*start, *messages])
        return [5, 6, 7]

    monkeypatch.setattr(library, "ids_of", ids_of)
    return turns


@pytest.fixture
def chat(sps, pair):
    def run(typed, *arguments):
        options = ("--chat", "-n", "6", "--ignore-eos", "--target", pair.target)
        return sps("generate", *options, *arguments, typed=typed)

    return run


def said(role, content):
    return {"role": role, "content": content}


def test_the_model_is_given_all_that_was_said(chat, seen):
    typed = b"one\n\n  two  \n/reset\nthree\n/exit\nfour\n"
    ran = chat(typed, "--system", "Be brief.")
    assert ran.code == 0
    system = said("system", "Be brief.")
    assert seen[0] == [system, said("user", "one")]
    assert seen[1][:2] == seen[0]
    assert seen[1][2]["role"] == "assistant"
    assert seen[1][3:] == [said("user", "two")]
    assert seen[2:] == [[system, said("user", "three")]]
    assert ran.out.count("you> ") == 6
    assert ran.err.count("6 tokens, α ") == 3


def test_commands_are_no_messages(chat, seen):
    ran = chat(b"/help\n/halt\n/reset now\n/\n/etc/passwd is what?\n//help\n1/2\n/exit\n")
    assert ran.code == 0
    contents = [turn[-1]["content"] for turn in seen]
    assert contents == ["/etc/passwd is what?", "/help", "1/2"]
    assert ran.err.count("/reset starts anew") == 2  # at the start, and asked for
    for typed in ("/halt", "/reset now", "/"):
        assert f"no command {typed}: expected /help, /reset, /exit. To say it" in ran.err


def test_every_turn_draws_noise_of_its_own(chat, seen):
    chat(b"one\none\none\n", "--no-stats")
    answers = [message["content"] for message in seen[2] if message["role"] == "assistant"]
    assert len(set(answers)) == 2


def test_an_interrupt_at_the_prompt_ends_it(chat, monkeypatch):
    def interrupt(prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    ran = chat(b"one\n")
    assert ran.code == Exit.INTERRUPTED
    assert ran.err.endswith("interrupted\n")
