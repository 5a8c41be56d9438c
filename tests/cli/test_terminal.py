"""What a person sees: colours, marks, conversations, interrupts, and readers that leave."""

import time

from tests.cli.forked import Forked
from tests.folders import random_model, save
from tests.oracles.command import Pair, environment


def arguments(pair, *more):
    return ("generate", "--target", pair.target, "--draft", pair.draft, "--ignore-eos", *more)


def test_a_conversation(terminal, pair):
    asked = arguments(pair, "--chat", "-n", "400", "--temperature", "0.9")
    chat = terminal(*asked, forked=True, NO_COLOR="1")
    chat.expect("you> ")
    chat.type("hi\n")
    chat.expect("[")  # the answer has begun
    chat.interrupt()
    chat.expect("you> ")
    chat.type("/reset\n")
    chat.expect("you> ")
    chat.type("x" * 600 + "\n")
    chat.expect("you> ")
    chat.type("\x04")
    ran = chat.end()
    assert ran.code == 0
    assert "stopped" in ran.err
    assert "error: the prompt has" in ran.err
    assert "Or forget the conversation with /reset" in ran.err
    assert "Traceback" not in ran.err


def test_an_interrupt_while_loading_and_while_generating(terminal, pair, tmp_path):
    endless = Pair(str(save(tmp_path / "long", random_model(context=20_000))), pair.draft)
    loading = terminal("generate", "the cat", "--target", pair.target)
    loading.process.stderr.readline()  # the note that comes before the imports
    time.sleep(0.3)
    loading.interrupt()
    generating = terminal(*arguments(endless, "the cat", "-n", "19000"), forked=True)
    generating.expect("\x1b[0m")
    generating.interrupt()
    for ran in (loading.end(), generating.end()):
        assert ran.code == 130
        assert ran.err.endswith("interrupted\n")
        assert "Traceback" not in ran.err
    assert ran.out.endswith("\n")
    assert ran.out.count("\x1b[3") == ran.out.count("\x1b[0m")


def test_a_pipe_gets_the_text_alone_with_any_encoding(pair):
    coded = environment(PYTHONIOENCODING="cp1252")
    process = Forked(*arguments(pair, "-n", "24"), env=coded, stdin=b"the cat")
    out, err = process.communicate()
    assert process.returncode == 0
    assert b"\x1b" not in out + err
    assert out.endswith(b"\n")
