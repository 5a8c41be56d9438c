"""Drafts over a part of the target's cache: distributions, rows and what is never written."""

from unittest.mock import patch

import pytest
import torch

from spsbench.engines.eager import EagerLM, UnsupportedModelError
from spsbench.engines.session.partial_cache import PartialFastLM, PartialLM, partial_session
from spsbench.engines.session.session import FastLM
from spsbench.loop.batch import Fed
from spsbench.loop.drafter_context import CachePart
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Context, Draft, Drafter
from spsbench.methods.drafters.self_speculation import PartialDrafter, TwoLevelDrafter
from tests.oracles.models import WINDOWED, laws, tiny
from tests.variants import first

TEXT = [5, 1, 4, 2, 8, 5, 7, 1, 3, 9, 0, 6, 2, 11, 10, 3, 3, 7]
SESSIONS = {"eager": (EagerLM, PartialLM), "fast": (FastLM, PartialFastLM)}


def pair_of(model, session, part):
    whole, kind = SESSIONS[session]
    target = whole(model)
    return target, kind(model, part=part, source=lambda: target)


def copied(target, positions):
    """A session over copies of the rows at `positions`, and the position of the next token."""
    lm = EagerLM(target.model)
    lm.append(torch.zeros(len(positions), dtype=torch.int64), keep=0)
    for own, whole in zip(lm._cache.layers, target._cache.layers, strict=True):
        own.keys = whole.keys[:, :, positions].clone()
        own.values = whole.values[:, :, positions].clone()
    return lm


@pytest.mark.parametrize(
    "architecture", first(4, ("llama", "gpt2", "mistral", "gemma2", "qwen2", "qwen3"))
)
@pytest.mark.parametrize("session", SESSIONS)
def test_a_window_as_long_as_the_text_gives_the_target_s_own_probs(architecture, session):
    windowed = architecture in WINDOWED
    model = tiny(
        architecture,
        attention="eager" if architecture == "gemma2" else "sdpa",
        **({"sliding_window": 5, **WINDOWED[architecture]} if windowed else {}),
    )
    target, lm = pair_of(model, session, CachePart(window=40, sinks=2))
    expected = laws(model, TEXT)
    for cut in (1, 3, 4, 9):
        target.append(torch.tensor(TEXT[target.length : cut]), keep=0)
        lm.commit(cut)
        got = torch.cat([lm.append(torch.tensor([token]), keep=1).logits for token in TEXT[cut:]])
        torch.testing.assert_close(got, expected[cut:], rtol=0, atol=1e-5)
        assert lm.length == len(TEXT)


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("session", SESSIONS)
def test_the_rows_are_the_target_s_first_and_newest(session, sinks):
    model, window = tiny("llama"), 4
    target, lm = pair_of(model, session, CachePart(window, sinks))
    for cut in (2, 3, 5, 8, 9, 16):  # less than the part, around the ring, over more than a ring
        target.append(torch.tensor(TEXT[target.length : cut]), keep=0)
        lm.commit(cut)
        rows = [p for p in range(cut) if p < sinks or p >= cut - window]
        assert sorted(lm._cache.positions(cut).tolist()) == rows
        reference = copied(target, rows)
        positions = torch.tensor([[cut]])
        expected = model(
            input_ids=torch.tensor([[TEXT[cut]]]),
            position_ids=positions,
            past_key_values=reference._cache,
        ).logits[0]
        got = lm.append(torch.tensor([TEXT[cut]]), keep=1).logits
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)
        lm.append(torch.tensor([TEXT[cut + 1]]), keep=1)  # a draft that the next commit drops


def test_drafting_never_writes_the_target_s_rows():
    target, lm = pair_of(tiny("llama"), "fast", CachePart(3, 1))
    target.append(torch.tensor(TEXT[:12]), keep=0)
    before = [layer.keys.clone() for layer in target._cache.layers]
    lm.commit(12)
    for token in TEXT[12:15]:
        lm.append(torch.tensor([token]), keep=1)
    for rows, layer in zip(before, target._cache.layers, strict=True):
        assert torch.equal(rows, layer.keys)


class Repeating(Drafter):
    """Drafts by rule: the tokens that a draft without it has, but for one that is wrong."""

    def __init__(self, tokens, wrong):
        self.tokens = [(t + 1) % 12 if i == wrong else t for i, t in enumerate(tokens)]

    def begin(self, prompt, prefill):
        pass

    def draft(self, context, k, noise, go_on):
        return Draft(torch.tensor(self.tokens[:k], dtype=torch.int64), None)


@pytest.mark.parametrize("session", SESSIONS)
def test_a_guessed_draft_is_the_draft_without_guesses_in_fewer_passes(session):
    model, part = tiny("llama", context=256), CachePart(4, 1)
    text, whole = (TEXT * 6)[:90], SESSIONS[session][0]
    target = whole(model)
    lm = partial_session(model, lambda: whole(model), part, lambda: target)
    target.append(torch.tensor(text[:-1]), keep=0)
    lm.append(torch.tensor(text[:-1]), keep=0)
    context = Context(text, lambda logits: logits.softmax(-1), None)
    every = torch.ones((), dtype=torch.bool)
    for seed in range(12):
        noise = PhiloxStream(seed).round(0)
        plain = PartialDrafter(lm).draft(context, 5, noise, lambda law: every)
        for wrong, passes in (None, 1), (2, 3), (0, 5):
            guesses = Repeating(plain.tokens.tolist(), wrong)
            with patch.object(lm, "append", wraps=lm.append) as fed:
                made = TwoLevelDrafter(lm, guesses).draft(context, 5, noise, lambda law: every)
            assert made.tokens.tolist() == plain.tokens.tolist()
            torch.testing.assert_close(made.probs, plain.probs, rtol=0, atol=1e-6)
            assert fed.call_count == passes


def test_sessions_without_rows_are_refused_and_a_text_never_shrinks():
    model, part = tiny("llama"), CachePart(4, 1)
    with pytest.raises(UnsupportedModelError):
        partial_session(model, object, part, None)
    target, lm = pair_of(model, "eager", part)
    target.append(torch.tensor(TEXT), keep=0)
    lm.commit(9)
    for length in (8, 19):
        with pytest.raises(ValueError):
            lm.commit(length)


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
@pytest.mark.parametrize("session", SESSIONS)
def test_passes_of_a_batch_give_what_each_gives_alone(architecture, session):
    model = tiny(architecture, **({"sliding_window": 5} if architecture == "mistral" else {}))
    rows = []
    for cut in (4, 11):
        target, lm = pair_of(model, session, CachePart(6, 1))
        target.append(torch.tensor(TEXT[:cut]), keep=0)
        lm.commit(cut)
        alone = lm.append(torch.tensor([TEXT[cut]]), keep=1).logits
        lm.commit(cut)
        rows.append((Fed(lm, torch.tensor([TEXT[cut]]), 1, None), alone))
    every = [fed for fed, _ in rows]
    assert len({fed.lm.shares(fed) for fed in every}) == 1
    assert every[0].lm.shares(every[0]) is not None
    for scores, (_, alone) in zip(every[0].lm.together(every), rows, strict=True):
        torch.testing.assert_close(scores.logits, alone, rtol=0, atol=1e-9)
