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
from spsbench.engines.eager import Eager, check_rollback
from spsbench.errors import DataError, UsageError
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.drafters.shaped import TreeDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.models.loader import load_model, load_shared
from spsbench.parallel import tensor_parallel
from spsbench.parallel.process_group import LostRankError
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests.oracles.models import tiny
from tests.parallel.team import team

HOW = ModelSpec("", dtype="float64")
SHARED = replace(HOW, parallel="tp:2")
GREEDY, SAMPLED = Warp(temperature=0.0), Warp(temperature=1.0)
PROMPT = [1, 2, 3]
USUAL = (Eager(),)


def made(folder, architecture, **more):
    """A checkpoint, and a draft model for it."""
    shape = {"num_key_value_heads": 4, **more}
    tiny(architecture, **shape).save_pretrained(folder)
    return folder, tiny(architecture, noise=0.3, **shape)


def texts(target, draft, engines=USUAL):
    """Of chains and trees, greedy and sampled."""
    found = []
    for engine in engines:
        for warp in (GREEDY, SAMPLED):
            chain = ModelDrafter(Eager().session(draft))
            tree = TreeDrafter(Eager().session(draft))
            for drafter, verifier in ((chain, Sps()), (tree, Match())):
                parts = {"drafter": drafter, "verifier": verifier, "schedule": Constant(3)}
                rounds = decode(
                    PROMPT,
                    target=engine.session(target),
                    warp=warp,
                    noise=PhiloxStream(5),
                    limits=Limits(16),
                    **parts,
                )
                found.append([token for done in rounds for token in done.tokens])
    return found


def whole(model):
    """What audits ask: a pass without a cache, and the parts that drafters use."""
    ids = torch.tensor([[1, 2, 3, 4]])
    rows = model(input_ids=ids, use_cache=False, logits_to_keep=2).logits[0]
    hidden = model.get_input_embeddings()(ids)[0]
    return torch.cat([rows, model.get_output_embeddings()(hidden)])


def check(size, folder, architecture, engines=USUAL, **more):
    folder, draft = made(folder, architecture, **more)
    alone = load_model(folder, HOW)

    def work():
        model = load_shared(folder, replace(HOW, parallel=f"tp:{size}"), Access())
        with torch.inference_mode():
            check_rollback(model)
            share = model.model.layers[0].mlp.up_proj.weight.to_local().shape[0]
            return texts(model, draft, engines), whole(model).tolist(), share

    (found, rows, share), codes = team(size, work)
    assert codes == [0] * size
    assert found == texts(alone, draft, engines)
    with torch.inference_mode():
        assert torch.allclose(
            torch.tensor(rows, dtype=torch.float64), whole(alone), rtol=0, atol=1e-12
        )
    assert share == alone.model.layers[0].mlp.up_proj.weight.shape[0] // size


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
