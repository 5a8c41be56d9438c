"""The cache is invisible: any script of appends and commits gives what a cacheless pass gives.

Over every registered engine. In float64 and to rounding, on four architectures (GQA, learned and
rotary positions, biases, norms of q and k) under both attention kernels, for chains and for trees.
"""

import copy
import random
from itertools import product

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spsbench.engines.session.cache import FIRST
from spsbench.engines.session.masks import SPARE
from spsbench.engines.session.session import FastLM
from spsbench.registry import entries
from tests.oracles.models import ARCHITECTURES, WINDOWED, laws, tiny
from tests.variants import first

pytestmark = pytest.mark.numeric

VOCAB = 12

architectures = pytest.mark.parametrize("architecture", first(2, ARCHITECTURES))
ENGINES = [entry.name for entry in entries("engines")]
QUICK = {("llama", "sdpa"), ("gpt2", "eager")}


@pytest.fixture(params=ENGINES)
def session(request):
    """Opens sessions of one engine over prepared copies of models."""
    engine = next(e for e in entries("engines") if e.name == request.param).load()()
    copies = {}

    def open_(model, **options):
        if id(model) not in copies:
            copied = copy.deepcopy(model)
            engine.prepare(copied, threads=1)
            copies[id(model)] = model, copied
        return engine.session(copies[id(model)][1], **options)

    return open_


def close(a, b, within=1e-9):
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=within)


def ancestry(node, parents):
    return [] if node < 0 else [*ancestry(parents[node], parents), node]


@pytest.mark.parametrize(
    ("architecture", "attention"),
    first(2, sorted(product(ARCHITECTURES, ("sdpa", "eager")), key=lambda row: row not in QUICK)),
)
def test_any_script_equals_passes_without_a_cache(model, session, architecture, attention):
    target = model(architecture, attention=attention)
    within = 1e-9 if attention == "sdpa" else 1e-5  # "eager" takes its softmax in float32
    any_script(target, session, within)


WINDOWS = sorted(product(WINDOWED, (4, 1, 9)), key=lambda row: row[1] != 4)


@pytest.mark.needs_fast
@pytest.mark.parametrize(("architecture", "window"), first(2, WINDOWS))
def test_any_script_with_windows_equals_passes_without_a_cache(
    model, session, architecture, window
):
    plain = architecture in ("gemma2", "gpt_oss")  # transformers has no sdpa for them
    asked = {"attention": "eager" if plain else "sdpa", "sliding_window": window}
    if architecture == "gpt_oss":
        asked["dtype"] = torch.float32  # torch's products of experts take no float64
    target = model(architecture, **asked, **WINDOWED[architecture])
    any_script(target, session, 1e-4 if plain else 1e-9)


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)
DEEP = [(3 * node % VOCAB, 1 + 4 * (node == 7) + 11 * (node == 11)) for node in range(12)]
NODES = st.just(DEEP) | st.lists(
    st.tuples(st.integers(0, VOCAB - 1), st.integers(1, 4)), min_size=1, max_size=12
)


class Script(RuleBasedStateMachine):
    """Blocks, trees and rewinds of one session in any order."""

    def __init__(self, target, lm, within):
        super().__init__()
        self.target, self.lm, self.within, self.text = target, lm, within, []

    def row(self, text):
        return laws(self.target, text)[-1]

    @rule(tokens=TOKENS, data=st.data())
    def append(self, tokens, data):
        keep = data.draw(st.integers(0, len(tokens)))
        logits = self.lm.append(torch.tensor(tokens), keep).logits
        self.text += tokens
        assert close(logits, laws(self.target, self.text)[len(self.text) - keep :], self.within)

    @rule(data=st.data())
    def go_back(self, data):
        self.text = self.text[: data.draw(st.integers(0, len(self.text)))]
        self.lm.commit(len(self.text))

    @precondition(lambda self: self.text)
    @rule(tokens=TOKENS, nodes=NODES, cuts=st.sets(st.integers(1, 11), max_size=1), data=st.data())
    def grow_a_tree(self, tokens, nodes, cuts, data):
        """In one pass or several; the text goes on along one of its paths."""
        parents = [max(-1, node - step) for node, (_, step) in enumerate(nodes)]
        fed, rows, start = [*tokens, *(token for token, _ in nodes)], [], 0
        for cut in [*sorted(cut for cut in cuts if cut < len(nodes)), len(nodes)]:
            block = torch.tensor(fed[start : len(tokens) + cut])
            rows.append(self.lm.append(block, len(block), torch.tensor(parents[:cut])).logits)
            start = len(tokens) + cut
        self.text += tokens
        paths = [ancestry(node, parents) for node in range(len(nodes))]
        texts = [self.text + [nodes[i][0] for i in path] for path in paths]
        expected = [*laws(self.target, self.text)[-len(tokens) :], *map(self.row, texts)]
        assert close(torch.cat(rows), torch.stack(expected), self.within)
        path = data.draw(st.sampled_from([[], *paths]))
        self.lm.commit(len(self.text), path)
        self.text += [nodes[i][0] for i in path]

    @invariant()
    def its_length_is_the_text_s(self):
        assert self.lm.length == len(self.text)


SCRIPTS = settings(
    max_examples=4, stateful_step_count=12, derandomize=True, database=None, deadline=None
)


def any_script(target, session, within):
    run_state_machine_as_test(lambda: Script(target, session(target), within), settings=SCRIPTS)


@pytest.mark.parametrize("path", [(0, 4, 8), (2, 6), (1, 5, 7), tuple(range(9))], ids=str)
def test_a_text_goes_on_along_a_late_branch_of_a_tree_of_nine(model, session, path):
    target = model("llama")
    lm, text, nodes = session(target), [3, 1, 4], [2, 5, 7, 9, 3, 8, 6, 1, 0]
    parents = [-1, -1, -1, 0, 0, 1, 2, 5, 4] if len(path) < 9 else list(range(-1, 8))
    lm.append(torch.tensor(text[:-1]), keep=0)
    lm.append(torch.tensor([text[-1], *nodes]), 10, torch.tensor(parents))
    lm.commit(len(text), list(path))
    text += [nodes[node] for node in path]
    after = [4, 4, 11]
    rows = lm.append(torch.tensor(after), keep=3).logits
    assert close(rows, laws(target, text + after)[-3:])


@architectures
def test_hidden_states_are_the_model_s_own(model, session, architecture):
    target = model(architecture)
    lm = session(target, layers=(0, 1, 2))
    ids = [3, 1, 4, 1, 5, 9]
    with torch.inference_mode():
        out = target(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    prefill = lm.append(torch.tensor(ids[:4]), keep=0)
    lm.append(torch.tensor([7, 7]), keep=1)
    lm.commit(4)
    rest = lm.append(torch.tensor(ids[4:]), keep=2)
    assert prefill.logits.shape == (0, VOCAB)
    for layer in 0, 1, 2:
        whole = torch.cat([prefill.hidden[layer], rest.hidden[layer]])
        assert close(whole, out.hidden_states[layer][0])


def test_beyond_the_context_nothing_is_fed(model, session):
    for architecture in "llama", "gpt2":
        lm = session(model(architecture, context=8))
        assert lm.limit == 8
        lm.append(torch.arange(7), keep=0)
        with pytest.raises(ValueError):
            lm.append(torch.arange(2), keep=1)
        assert lm.append(torch.arange(1), keep=1).logits.shape == (1, VOCAB)


def test_a_commit_cannot_keep_more_than_there_is(model, session):
    lm = session(model("llama"))
    lm.append(torch.arange(4), keep=0)
    for length, path in (5, None), (-1, None), (4, [0]):
        with pytest.raises(ValueError):
            lm.commit(length, path)


def test_no_token_runs_nothing(model, session):
    lm = session(model("llama"))
    assert lm.append(torch.empty(0, dtype=torch.int64), keep=0).logits.shape == (0, VOCAB)
    assert lm.length == 0


def test_padding_rows_of_the_logits_are_dropped(model, session):
    target = model("llama")
    lm = session(target, vocab_size=9)
    assert lm.vocab_size == 9
    assert close(lm.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2])[:, :9])


@architectures
def test_half_precision_loses_no_more_than_a_plain_pass(model, session, architecture):
    """In the manner of kernels: at most twice the plain pass' error against float32, and a hair."""
    exact = model(architecture, dtype=torch.float32)
    half = model(architecture, dtype=torch.bfloat16)
    ids = random.Random(2).choices(range(VOCAB), k=24)
    truth, lm = laws(exact, ids), session(half)
    lm.append(torch.tensor(ids[:16]), keep=0)
    lm.append(torch.tensor([0, 0, 0]), keep=3)
    lm.commit(16)
    ours = lm.append(torch.tensor(ids[16:]), keep=8).logits.float()
    plain = laws(half, ids)[-8:].float()
    assert (ours - truth[-8:]).abs().max() <= 2 * (plain - truth[-8:]).abs().max() + 1e-3


LONG = 300  # tokens: several times what a cache that forgets holds


def goes_back(kind, window, fed):
    """Return a session that was fed tokens in steps of `fed`, and whether it goes back.

    By a few tokens as after a rejection, by more than it holds, and along a branch of a tree.
    """
    target = tiny("mistral", context=2 * LONG, sliding_window=window)
    rng, lm, text = random.Random(window), kind(target), []
    while len(text) < LONG:
        text += (new := [rng.randrange(VOCAB) for _ in range(fed)])
        lm.append(torch.tensor(new), 0)
    held, right = lm._cache.layers[0].length, True
    for back in (1, 5, SPARE, 2 * SPARE + window, 0):
        text = text[: len(text) - back]
        lm.commit(len(text))
        logits = lm.append(torch.tensor([3, 1, 4, 1]), 4, torch.tensor([-1, 0, 0])).logits
        paths = ([3], [3, 1], [3, 1, 4], [3, 1, 1])
        right &= close(logits, torch.stack([laws(target, text + path)[-1] for path in paths]))
        lm.commit(len(text) + 1, [0, 2])
        text += [3, 1, 1, 2]
        right &= close(lm.append(torch.tensor([2]), 1).logits, laws(target, text)[-1:])
    assert lm.length == len(text)
    return lm, held, right


@pytest.mark.parametrize(
    ("window", "fed"), first(3, [(9, 1), (1, 100), (40, 100), (1, 1), (40, 1), (9, 100)])
)
def test_a_cache_of_windows_forgets_and_goes_back(window, fed):
    lm, held, right = goes_back(FastLM, window, fed)
    assert held <= lm.windows.held(LONG) + fed
    assert lm._cache.layers[0].capacity <= 2 * FIRST
    assert right
