"""`sps generate` over a tiny pair: text, figures, notes and what is refused."""

import hashlib
import json
import re
import socket
import unicodedata
from pathlib import Path

import pytest

from spsbench.errors import Exit
from spsbench.store.provenance import digest, hash_files
from tests.folders import byte_tokenizer, random_model, save
from tests.oracles.models import tiny

QUIET = ("--no-stats", "-n", "24", "--ignore-eos")


def test_plain_text_on_stdout_and_figures_on_stderr(generate):
    ran = generate("the cat", "-n", "24", "--ignore-eos")
    assert ran.code == 0
    assert ran.out.endswith("\n")
    assert "the cat" not in ran.out
    assert not any(unicodedata.category(c) == "Cc" for c in ran.out if c not in "\n\t")
    for label in ("acceptance rate α", "block efficiency τ", "mean token time", "prefill"):
        assert label in ran.err


def test_one_json_object(generate, pair):
    ran = generate("the cat", *QUIET, "--json")
    assert ran.code == 0
    assert ran.out.isascii()
    assert ran.out.count("\n") == 1
    assert "rounds" not in ran.err
    made = json.loads(ran.out)
    told = "schema prompt_sha256 models prompt_tokens tokens text finish_reason rounds metrics "
    told += "settings engines advice environment"
    assert set(made) == set(told.split())
    assert made["advice"] == []
    assert len(made["tokens"]) == made["metrics"]["tokens"] == 24
    assert sum(r["emitted"] for r in made["rounds"]) == 24
    told = "drafted tested accepted emitted overlap seconds draft_seconds target_seconds "
    told += "processor_seconds tree passes"
    assert set(made["rounds"][0]) == set(told.split())
    assert made["prompt_sha256"] == hashlib.sha256(b"the cat").hexdigest()
    digests = {name: digest(hash_files(Path(name))) for name in pair}
    assert made["models"] == digests
    assert len(set(digests.values())) == 2
    assert 0 < made["metrics"]["alpha"] < 1
    assert made["settings"]["verifier"]["name"] == "sps"
    assert made["environment"]["spsbench"]


def test_greedy_compared_is_identical(generate):
    arguments = ("the cat", "-n", "80", "--ignore-eos", "--temperature", "0", "--compare")
    ran = generate(*arguments)
    assert "tokens: identical to ArS" in ran.err
    assert "speed-up over ArS: " in ran.err
    assert "95% interval" in ran.err

    made = json.loads(generate(*arguments, "--json").out)
    assert (made["identical"], made["divergence"]) == (True, None)
    assert made["ars"]["tokens"] == made["tokens"]
    assert {r["drafted"] for r in made["ars"]["rounds"]} == {0}
    assert made["speedup"]["low"] <= made["speedup"]["mean"] <= made["speedup"]["high"]


def test_alpha_is_labelled_with_what_it_stands_on(generate, sps, pair):
    assert "n/a (block)" in generate("the cat", "-n", "8", "--verifier", "block").err
    plain = generate("the cat", "-n", "8", "-k", "0", "--draft-adapter", "nowhere").err
    assert "n/a (nothing drafted)" in plain
    assert "--draft-adapter with --k 0: no effect, no draft is loaded" in plain
    looked_up = sps(
        "generate", "the cat sat on the cat sat on", "-n", "40", "--target", pair.target
    )
    assert "(over tested deterministic drafts)" in looked_up.err


def test_advice_is_the_last_line_or_a_field(sps, pair):
    nothing = ("generate", "the cat", "-n", "20", "--ignore-eos", "--target", pair.target)
    nothing += ("--drafter", "ngram:n=32,min_n=32")
    said = "prompt lookup found nothing to draft in 20 rounds"
    assert sps(*nothing).err.splitlines()[-1].startswith(f"advice: {said}")
    assert said not in sps(*nothing, "--no-stats").err
    ran = sps(*nothing, "--json")
    assert said not in ran.err
    assert [line.startswith(said) for line in json.loads(ran.out)["advice"]] == [True]


@pytest.mark.needs_fast
def test_notes_are_lines_on_stderr(generate, sps, pair):
    err = generate("hi", *QUIET, "--json").err
    assert "note: the draft model (" in err
    assert "is not smaller than the target" in err
    assert "note: the draft model's context is 256 tokens, the target's 512" in err
    err = sps("generate", "hi", *QUIET, "--target", pair.target).err
    line = "note: drafting with ngram (prompt lookup), since none was named; name a draft model"
    assert err == f"{line} with --draft\n"


def test_logits_of_no_tokens_are_noted_and_not_drawn(sps, tmp_path):
    vocab = len(byte_tokenizer())
    folder = save(tmp_path / "padded", random_model())
    save(folder, tiny("llama", vocab=vocab + 6, dtype=random_model().dtype))
    ran = sps("generate", "the cat", *QUIET, "--target", str(folder), "--json")
    assert ran.code == 0
    assert f"note: 6 of the target's {vocab + 6} logits are no tokens" in ran.err
    assert max(json.loads(ran.out)["tokens"]) < vocab


def test_a_prompt_that_does_not_fit(generate):
    long = "x" * 510
    ran = generate(long, "-n", "20", "--no-stats")
    assert (ran.code, ran.out) == (Exit.DATA, "")
    assert "error: the prompt has 510 tokens and 20 are to be generated: expected at most 512" in (
        ran.err
    )
    assert "--truncate left" in ran.err

    made = generate(long, "-n", "20", "--ignore-eos", "--json", "--truncate", "left")
    assert "note: dropped the oldest 18 of 510 prompt tokens" in made.err
    assert json.loads(made.out)["prompt_tokens"] == 492
    assert generate("hi", "-n", "512", "--truncate", "left").code == Exit.DATA


def test_a_chat_of_one_turn(generate):
    plain = json.loads(generate("user: hi\nassistant: ", "-n", "8", "--json").out)
    chat = json.loads(generate("hi", "--chat", "-n", "8", "--json").out)
    assert chat["tokens"] == plain["tokens"]
    system = json.loads(generate("hi", "--chat", "--system", "x", "-n", "8", "--json").out)
    assert system["prompt_tokens"] > chat["prompt_tokens"]


def test_no_path_is_asked_for_on_the_network(sps, pair, monkeypatch):
    hub = socket.create_server(("127.0.0.1", 0))
    hub.setblocking(False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
    assert sps("generate", "hi", *QUIET, "--target", pair.target).code == 0
    assert sps("generate", "hi", "--target", "./missing").code == Exit.MISSING
    assert sps("generate", "hi", "--target", "a/b/c").code == Exit.MISSING
    assert sps("generate", "hi", "--target", "org/none", "--offline").code == Exit.UNAVAILABLE
    with hub, pytest.raises(BlockingIOError):  # nobody has connected
        hub.accept()


def test_a_page_to_step_through(generate, tmp_path):
    out = tmp_path / "page.html"
    asked = ("the cat <b>", "-n", "12", "--compare", "--format", "html")
    ran = generate(*asked, "--out", str(out))
    assert ran.code == 0, ran.err
    assert ran.out == ""
    text = out.read_text("utf-8")
    found = re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)
    sps, ars = json.loads(found[1])["traces"]
    assert len(ars["tokens"]) == 12
    assert sps["prompt"] == "the cat <b>"
    steps = sps["steps"]
    assert any(steps["drafted"])
    assert [len(tokens) for tokens in steps["laws"]] == steps["drafted"]
    assert "laws" not in ars["steps"]
    assert generate(*asked).out.startswith("<!doctype html>")
