"""A target over several ranks: its text is that of one rank, and a rank that dies ends the others.

In float64, where the order in which a sum is formed changes no token.
"""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch

import spsbench
from spsbench.engines.eager import Eager
from spsbench.errors import DataError, UsageError
from spsbench.models.loader import load_model, load_shared
from spsbench.parallel import tensor_parallel
from spsbench.parallel.process_group import LostRankError
from spsbench.settings.execution import Access
from tests.oracles.models import tiny
from tests.oracles.ranks import HOW, PROMPT, check, made, texts
from tests.parallel.team import team

SHARED = replace(HOW, parallel="tp:2")


def test_two_ranks_write_the_text_of_one(tmp_path):
    check(2, tmp_path, "llama", vocab=13)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_write_the_text_of_one(size, architecture, tmp_path):
    check(size, tmp_path, architecture)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["eagle3", "medusa"])
def test_heads_draft_over_a_shared_target(drafter, temperature):
    """They read its hidden states, and use its embeddings and its head, of which each has parts."""
    asked = {"target": "nano", "drafter": drafter, "dtype": "float64"}

    def written(**more):
        pair = spsbench.load(offline=True, **asked, **more)
        chosen = {"temperature": temperature, "seed": 2, "max_new_tokens": 24}
        return list(pair.generate("def f(", **chosen).tokens)

    found, codes = team(2, lambda: written(parallel="tp"))
    assert (found, codes) == (written(), [0, 0])


@pytest.mark.slow
@pytest.mark.cluster
def test_another_text_would_be_seen(tmp_path, monkeypatch):
    """Planted: the other ranks forget to drop rejected tokens."""
    monkeypatch.setattr(tensor_parallel.FollowerLM, "keep", lambda self, length, nodes: None)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        check(2, tmp_path, "llama")


@pytest.mark.parametrize(
    ("hit", "timeout", "line"),
    [
        (signal.SIGKILL, 60.0, "a rank has ended"),  # the timeout is not waited for
        pytest.param(
            signal.SIGSTOP, 2.0, "a rank has not answered for 2 s", marks=pytest.mark.slow
        ),
    ],
)
def test_a_rank_that_dies_or_stands_still_ends_the_others(hit, timeout, line, tmp_path):
    folder, _ = made(tmp_path, "llama")

    def work(strike):
        model = load_shared(folder, SHARED, Access())
        lm = Eager().session(model)
        lm.append(torch.tensor(PROMPT), keep=1)
        strike()
        for _ in range(50):
            lm.append(torch.tensor([1]), keep=1)

    error, codes = team(2, work, dies=1, of=hit, timeout=timeout)
    assert isinstance(error, LostRankError)
    assert str(error).startswith(line)
    assert "\n" not in str(error)
    assert codes[1] == -9


@pytest.mark.slow
def test_ranks_wait_for_rank_0_as_long_as_it_lives():
    """A command without --parallel joins at its end; `within` is for the store alone."""
    assert team(2, lambda: 7, within=2.0, before=lambda: time.sleep(3)) == (7, [0, 0])
    assert team(2, lambda: 7, before=lambda: os._exit(3)) == (None, [3, 69])


@pytest.mark.slow
@pytest.mark.cluster
def test_a_pause_of_rank_0_beyond_the_timeout_loses_no_rank(tmp_path):
    folder, _ = made(tmp_path, "llama")

    def work():
        lm = Eager().session(load_shared(folder, SHARED, Access()))
        lm.append(torch.tensor(PROMPT), keep=1)
        time.sleep(6)
        return lm.append(torch.tensor([1]), keep=1).logits.shape

    found, codes = team(2, work, timeout=2.0)
    assert (found[0], codes) == (1, [0, 0])


@pytest.mark.slow
@pytest.mark.cluster
def test_a_pass_that_the_others_cannot_follow_is_refused(tmp_path):
    """transformers' own generation would wait for ranks that know nothing; then all goes on."""
    folder, draft = made(tmp_path, "llama")

    def work():
        model = load_shared(folder, SHARED, Access())
        with pytest.raises(UsageError):
            model(input_ids=torch.tensor([PROMPT]))
        return texts(model, draft)[0]

    found, codes = team(2, work)
    assert (len(found), codes) == (16, [0, 0])


@pytest.mark.parametrize(("architecture", "size"), [("gpt2", 2), ("llama", 3)])
def test_what_cannot_be_shared_is_refused(architecture, size, tmp_path):
    tiny(architecture).save_pretrained(tmp_path)
    with pytest.raises(DataError):
        load_model(tmp_path, replace(HOW, parallel=f"tp:{size}"))


@pytest.fixture(autouse=True)
def no_channel():
    yield
    assert tensor_parallel._channel is None, "the process that tests is no rank"
