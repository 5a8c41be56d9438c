"""Models with states: what a session scores is what the stock model scores, fed one by one.

Drafts of every length with every number of accepted tokens, trees, far rewinds, chunks of a
prefill; the distribution of the loop by enumeration.
"""

import random
from functools import cache
from unittest.mock import patch

import pytest
import torch

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.enumeration import prove
from spsbench.checkpoints.config import check_shareable
from spsbench.engines.eager import UnsupportedModelError, check_rollback
from spsbench.engines.session import recurrent
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.session.layer_skip import view
from spsbench.engines.session.recurrent import RecurrentLM, register_states
from spsbench.engines.session.states import keeps_states
from spsbench.errors import DataError, OutOfMemoryError
from spsbench.loop.drafter_context import Variant
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps
from spsbench.registry import entries
from tests.oracles.models import tiny
from tests.oracles.written_rules import RULES
from tests.stateful_models import FAMILIES, Oracle, stateful
from tests.variants import first

VOCAB = 12
IN_FLOAT32 = {"kimi_linear", "bailing_hybrid"}  # what their fallbacks compute, in any dtype
QUICK = 3

families = pytest.mark.parametrize("family", first(QUICK, FAMILIES))
made = cache(stateful)
oracle = cache(lambda family, prompt: Oracle(made(family), prompt))


def tokens(rng, count):
    return [rng.randrange(VOCAB) for _ in range(count)]


def begun(model, prompt, kind=RecurrentLM):
    lm = kind(model)
    if len(prompt) > 1:
        lm.append(torch.tensor(prompt[:-1]), keep=0)
    return lm


def gap_of(family, k, accepted, kind=RecurrentLM, prompt=5):
    """Largest difference of logits in rounds of `k` drafts that keep `accepted`, and after them."""
    rng, gaps = random.Random(k), []
    text = tokens(rng, prompt)
    known, lm = oracle(family, tuple(text)), begun(made(family), text, kind)

    def scored(draft):
        logits = lm.append(torch.tensor([text[-1], *draft]), keep=len(draft) + 1).logits
        gaps.append(float((logits - known.rows([*text, *draft])[-len(draft) - 1 :]).abs().max()))

    for _ in range(2):
        draft = tokens(rng, k)
        scored(draft)
        lm.commit(len(text) + accepted)
        text += [*draft[:accepted], rng.randrange(VOCAB)]
    scored([])  # a round without a draft
    lm.commit(len(text) - 2)  # farther back than a round
    text = text[:-1]
    scored([])
    lm.commit(0)
    lm.append(torch.tensor(text[: prompt - 1]), keep=0)
    text = text[:prompt]
    scored(tokens(rng, 1))
    return max(gaps)


def bound(family):
    return 1e-5 if family in IN_FLOAT32 else 1e-9


@families
@pytest.mark.parametrize("k", first(1, (3, 1, 2, 4, 5, 6)))
def test_forced_prefixes_are_scored_as_one_by_one(family, k):
    for accepted in range(k + 1):
        assert gap_of(family, k, accepted) < bound(family)


@pytest.mark.parametrize("family", first(1, FAMILIES))
def test_a_prompt_of_one_token_needs_no_prefill(family):
    assert max(gap_of(family, 2, accepted, prompt=1) for accepted in range(3)) < bound(family)


TREE = [-1, 0, 0, 2, -1, 4, 1]


@families
def test_trees_are_scored_as_their_branches_after_commits_along_any_branch(family):
    rng = random.Random(7)
    text = tokens(rng, 4)
    known, lm = Oracle(made(family), text), begun(made(family), text)

    def branch(node):
        return [] if node < 0 else [*branch(TREE[node]), node]

    for last in (6, 5, -1, 3, 1, 4):
        nodes = tokens(rng, len(TREE))
        fed = torch.tensor([text[-1], *nodes[:4]])
        logits = lm.append(fed, 5, torch.tensor(TREE[:4])).logits
        rest = lm.append(torch.tensor(nodes[4:]), 3, torch.tensor(TREE)).logits
        for node, row in enumerate(torch.cat([logits, rest]), -1):
            path = [nodes[i] for i in branch(node)]
            assert (row - known.row([*text, *path])).abs().max() < bound(family)
        lm.commit(len(text), branch(last))
        text += [*(nodes[i] for i in branch(last)), rng.randrange(VOCAB)]


@families
@pytest.mark.parametrize("back", first(1, (2, 9)))
def test_a_prefill_in_chunks_is_one_prefill(family, back):
    """A chunk that does not read its state is never made; a far rewind reads the text again."""
    text = tokens(random.Random(5), 12)
    known = Oracle(made(family), text[:1])
    passes = []
    own = RecurrentLM._forward

    def noted(self, fed, keep, parents):
        passes.append(len(fed))
        return own(self, fed, keep, parents)

    with patch.object(recurrent, "PREFILL_CHUNK", 4), patch.object(RecurrentLM, "_forward", noted):
        lm = begun(made(family), text)
    assert passes == ([4, 4, 3] if recurrent.stateful(made(family)).reads_blocks else [11])
    within = 0.1 if family in ("nemotron_h", "zamba2") else 1e-4  # .float() in chunks
    for length in len(text), len(text) - back:
        lm.commit(length - 1)
        row = lm.append(torch.tensor(text[length - 1 : length]), 1).logits[0]
        assert (row - known.row(text[:length])).abs().max() < within
        lm.commit(length - 1)


def test_rows_beyond_those_whose_states_are_kept_are_read_again(monkeypatch):
    monkeypatch.setattr(recurrent, "KEPT", 2)
    text = tokens(random.Random(3), 9)
    known, lm = Oracle(made("qwen3_5_text"), text[:1]), begun(made("qwen3_5_text"), text[:1])
    rows = lm.append(torch.tensor(text), keep=9).logits
    assert (rows - known.rows(text)).abs().max() < 1e-9
    assert len(lm._cache.after) == 2
    lm.commit(4)
    assert (
        lm.append(torch.tensor(text[4:5]), 1).logits[0] - known.row(text[:5])
    ).abs().max() < 1e-9


def over_states(family, kind=RecurrentLM):
    """A case over real models of three tokens, whose distributions are the oracle's."""
    target, draft = made(family, vocab=3), made(family, vocab=3, noise=0.3)

    def law_of(model):
        known = Oracle(model, [0])
        return lambda prefix: tuple(known.row(prefix).softmax(-1).tolist())

    return Case(
        Sps(),
        RULES["sps"](),
        law_of(target),
        law_of(draft),
        3,
        lm=lambda case, text, is_target: (kind if is_target else RecurrentLM)(
            target if is_target else draft
        ),
        schedule=Constant(1),
        tokens=2,
    )


@pytest.mark.parametrize("family", first(1, ("lfm2", "qwen3_5_text")))
def test_the_distribution_over_states(family):
    proof = prove(over_states(family))
    assert proof.constant
    assert proof.distance < 1e-9


def test_every_engine_opens_the_session_and_the_line_says_why():
    model = stateful("qwen3_5_text", dtype=torch.float32)
    for entry in entries("engines"):
        engine = entry.load()()
        engine.prepare(model)
        assert type(engine.session(model)) is RecurrentLM
    assert str(engine_config_of(model)) == "eager: 1 layer keeps states (2.05 KB a row)"
    assert register_states(model) is recurrent.stateful(model)
    assert register_states(tiny("llama")) is None


REFUSED = {
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2},
    "recurrent_gemma": {"lru_width": 32, "num_key_value_heads": 1},
    "rwkv": {},
    "xlstm": {"num_heads": 4},
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 8},
}


@pytest.mark.parametrize("family", first(2, REFUSED))
def test_states_that_cannot_be_taken_back_are_refused_with_the_reason(family, monkeypatch):
    monkeypatch.setitem(FAMILIES, family, {**FAMILIES.get(family, {}), **REFUSED[family]})
    model = stateful(family, registered=False)

    def load():
        register_states(model)
        check_rollback(model)

    with pytest.raises(UnsupportedModelError):
        load()


def test_layers_with_states_are_neither_left_out_nor_shared_by_ranks(tmp_path):
    model = made("qwen3_5_text")
    with pytest.raises(UnsupportedModelError):
        view(model, Variant(layers=frozenset({1})))
    with pytest.raises(DataError):
        check_shareable(type(model), model.config, 2, tmp_path)
    assert keeps_states(model.config)
    assert not keeps_states(tiny("llama").config)


def test_states_that_do_not_fit_are_refused_with_their_bytes(monkeypatch):
    lm = begun(made("qwen3_5_text"), [1, 2, 3])
    monkeypatch.setattr(recurrent, "CHECKED", 1)
    monkeypatch.setattr(recurrent, "ram", lambda: (10_000, 10_000))
    lm.append(torch.tensor([3, 4]), keep=2)
    with pytest.raises(OutOfMemoryError):
        lm.append(torch.tensor([1, 2, 3, 4, 5]), keep=5)
    assert lm.length == 4


def test_a_trial_that_fails_is_told(monkeypatch):
    model = stateful("mamba", registered=False)
    monkeypatch.setattr(recurrent, "find_mixers", lambda model: 1 / 0)
    with pytest.raises(UnsupportedModelError):
        register_states(model)
    assert recurrent.stateful(model) is None


@pytest.mark.parametrize("family", ["qwen3_5_text", "mamba"])
def test_hidden_states_are_numbered_from_the_embeddings(family):
    model, text = made(family), torch.tensor([3, 1, 4, 1, 5])
    results: dict[int, torch.Tensor] = {}
    blocks = next(x for x in model.modules() if isinstance(x, torch.nn.ModuleList))
    handle = blocks[0].register_forward_hook(lambda _, x, y: results.update({1: y}))
    scores = RecurrentLM(model, layers=(0, 1, 2)).append(text, keep=5)
    handle.remove()
    assert torch.equal(scores.hidden[0], model.get_input_embeddings()(text))
    assert torch.equal(scores.hidden[1], results[1][0])
    assert torch.equal(
        model.get_output_embeddings()(scores.hidden[2]).float(), scores.logits.float()
    )
