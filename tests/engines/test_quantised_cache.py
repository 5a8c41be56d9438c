"""Drafts over codes of the target's cache: laws, codes made once, and what is never written."""

import random
from unittest.mock import patch

import pytest
import torch

from spsbench.engines.eager import EagerLM, UnsupportedModelError
from spsbench.engines.session.partial_cache import (
    QuantisedCache,
    QuantisedFastLM,
    QuantisedLM,
    partial_session,
)
from spsbench.engines.session.quantised_cache import GROUP, CodedRows
from spsbench.engines.session.session import FastLM
from spsbench.loop.batch import Fed
from spsbench.loop.drafter_context import CachePart
from spsbench.messages import ignore
from spsbench.methods.drafters.self_speculation import SelfDrafter
from spsbench.spec import Spec
from tests.engines.test_partial_cache import check_greedy_texts, rows_stay
from tests.tiny_models import tiny

TEXT = random.Random(5).choices(range(12), k=200)
WITHIN = 2e-4  # of logits: numbers of 8 bits reach 510
KINDS = {"eager": EagerLM, "fast": FastLM}


def opened(session, bits, window=5, dtype=torch.float32, width=32, prepare=ignore):
    model = tiny("llama", dtype=dtype, head_dim=width, context=256)
    prepare(model)
    kind = KINDS[session]
    target, part = kind(model), CachePart(window, 0, bits=bits)
    return target, partial_session(model, lambda: kind(model), part, lambda: target)


def over_decoded_rows(target, lm):
    """A session over the rows that the codes stand for, and the target's own newest ones."""
    made, end = EagerLM(target.model), lm.length
    made.append(torch.zeros(end, dtype=torch.int64), keep=0)
    for own, coded, whole in zip(
        made._cache.layers, lm._cache.layers, target._cache.layers, strict=True
    ):
        keys, values = coded.past.decoded() if coded.past.groups else (own.keys[:, :, :0],) * 2
        begin = coded.past.groups * GROUP
        own.keys = torch.cat([keys.to(own.keys.dtype), whole.keys[:, :, begin:end]], 2)
        own.values = torch.cat([values.to(own.values.dtype), whole.values[:, :, begin:end]], 2)
    return made


def greatest_gap(target, lm):
    """Of logits over codes from those over the rows that they stand for, at cuts around a group."""
    gaps = []
    for cut, groups in (40, 0), (68, 0), (69, 1), (100, 1), (180, 2):
        target.append(torch.tensor(TEXT[target.length : cut]), keep=0)
        lm.commit(cut)
        assert lm._cache.layers[0].past.groups == groups
        reference = over_decoded_rows(target, lm)
        for token in TEXT[cut : cut + 3]:
            expected = reference.append(torch.tensor([token]), keep=1).logits
            gaps.append((lm.append(torch.tensor([token]), keep=1).logits - expected).abs().max())
    return float(torch.stack(gaps).max())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("session", KINDS)
@pytest.mark.parametrize("width", [32, 16])
def test_laws_are_those_over_the_rows_that_codes_stand_for(session, bits, width):
    target, lm = opened(session, bits, width=width)
    fast = session == "fast" and width == 32  # a program reads 32 codes at once
    assert type(lm) is (QuantisedFastLM if fast else QuantisedLM)
    assert greatest_gap(target, lm) < WITHIN


def test_a_draft_that_does_not_read_its_codes_is_seen():
    target, lm = opened("eager", 8)
    with patch.object(CodedRows, "attend", lambda _, forward, *given: forward(*given[:-1])[0]):
        assert greatest_gap(target, lm) > 10 * WITHIN


@pytest.mark.parametrize("bits", [8, 4])
def test_passes_of_a_batch_give_what_each_gives_alone(bits):
    assert_texts_of_a_batch_are_those_alone(bits)


def assert_texts_of_a_batch_are_those_alone(bits, prepare=ignore, within=1e-5):
    pairs = [opened("fast", bits, prepare=prepare)]
    model = pairs[0][0].model
    other = FastLM(model)
    pairs.append((other, partial_session(model, lambda: FastLM(model), CachePart(5, 0), None)))
    part = CachePart(5, 0, bits=bits)
    pairs[1] = other, partial_session(model, lambda: FastLM(model), part, lambda: other)
    for (target, lm), cut in zip(pairs, (75, 150), strict=True):
        target.append(torch.tensor(TEXT[:cut]), keep=0)
        lm.commit(cut)
    token = torch.tensor([3])
    alone = [lm.append(token, keep=1).logits for _, lm in pairs]
    for target, lm in pairs:
        lm.commit(target.length)
    every = [Fed(lm, token, 1, None) for _, lm in pairs]
    assert every[0].lm.shares(every[0]) == every[1].lm.shares(every[1])
    for one, scores in zip(alone, pairs[0][1].together(every), strict=True):
        torch.testing.assert_close(scores.logits, one, rtol=0, atol=within)


def test_codes_are_made_once_a_group():
    made, put = [], CodedRows.put

    def noted(self, keys, values, first):
        made.append((first, keys.shape[1]))
        put(self, keys, values, first)

    target, lm = opened("eager", 8)
    target.append(torch.tensor(TEXT), keep=0)
    with patch.object(CodedRows, "put", noted):
        for end in range(60, 200):
            lm.commit(end)
    assert made == [(at, GROUP) for at in (0, 1, 2) for _ in lm._cache.layers]
    fresh = partial_session(target.model, lambda: EagerLM(target.model), lm.part, lambda: target)
    fresh.commit(199)
    token = torch.tensor([1])
    assert torch.equal(lm.append(token, 1).logits, fresh.append(token, 1).logits)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("session", KINDS)
def test_greedy_texts_are_the_target_s_own(session, bits):
    target, lm = opened(session, bits)
    check_greedy_texts(TEXT[:110], target, lm, 40)


class Aliasing(QuantisedCache):
    """The planted fault: newest rows that are the target's own memory."""

    def copy(self, own, whole, begin, end):
        super().copy(own, whole, begin, end)
        first = GROUP * self.groups(end)
        own.keys, own.values = whole.keys[:, :, first:], whole.values[:, :, first:]
        own.capacity = own.keys.shape[2]


class AliasingLM(QuantisedLM):
    def _open(self):
        super()._open()
        self._cache = Aliasing(self.limit, self.part)


@pytest.mark.parametrize(
    ("kind", "kept"), [(QuantisedLM, True), (AliasingLM, False)], ids=["copies", "aliases"]
)
def test_drafting_never_writes_the_target_s_rows(kind, kept):
    target, _ = opened("fast", 8)
    lm = kind(target.model, part=CachePart(5, 0, bits=8), source=lambda: target)
    assert rows_stay(target, lm, TEXT[:103]) is kept


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="kv4 with other arguments: expected it alone"):
        SelfDrafter.plan(**dict(Spec.parse("self:kv4,window=8").args))
    mistral = tiny("mistral", sliding_window=5)
    part = CachePart(5, 0, bits=8)
    with pytest.raises(UnsupportedModelError, match="attention can be read \\(kv8\\)"):
        partial_session(mistral, lambda: EagerLM(mistral), part, None)
