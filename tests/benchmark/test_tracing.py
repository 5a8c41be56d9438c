"""What a trace holds, against models asked one token at a time."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import spsbench
from spsbench.benchmark import target_probs
from spsbench.benchmark.target_probs import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer, overrides, proposed_by_k, scheduled_slots
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Draft, Drafter, Limits, Schedule, Scores, always
from spsbench.loop.types import Drawn as How
from spsbench.methods.build import LoadedDecoderContext
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.ngram import NgramDrafter, count_agreeing
from spsbench.methods.drafters.suffix import SuffixDrafter
from spsbench.methods.resolve import resolve, warp_of
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import CellRequest
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.traces import SampledDraft
from tests.folders import byte_tokenizer, random_model
from tests.parts import ByHistory, ByLaw
from tests.variants import first

PROMPT = [ord(c) for c in "the cat sat on the mat"]
TEXT = [ord(c) for c in " and the cat sat on the hat"]
EAGER = Spec("eager")
CELL = resolve(
    CellRequest(
        target=ModelSpec("t", engine=EAGER),
        draft=ModelSpec("d", engine=EAGER),
        temperature=0.7,
        max_new_tokens=40,
    )
)


@pytest.fixture(scope="module")
def loaded():
    tokenizer = byte_tokenizer()
    draft = random_model(noise=0.1, context=40)
    return Loaded(random_model(), draft, tokenizer, len(tokenizer), frozenset(), None)


def row(model, size, text):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(text)])).logits[0, -1, :size].cpu()


def traced(cell, loaded, monkeypatch):
    monkeypatch.setattr(target_probs, "PIECE", 7)  # pieces that end inside the text
    text = TextTracer(cell.auto_regressive, loaded)
    draft = DraftTracer("d", [cell], loaded, {})
    rows = list(text.rows(PROMPT, TEXT))
    written = text.written(("c", "s", 0), PROMPT, TEXT, "length", rows)
    return written, draft.along(PROMPT, TEXT, rows), draft


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_columns_are_those_of_one_token_at_a_time(temperature, loaded, monkeypatch):
    cell = resolve(CELL.to_request(temperature=temperature))
    written, along, draft = traced(cell, loaded, monkeypatch)
    assert isinstance(along, SampledDraft)
    assert draft.untraceable is None
    assert (written.budget, written.prompt_tokens) == (40, len(PROMPT))
    size, reach = loaded.vocab_size, 40 - len(PROMPT)
    assert along.reach == reach
    for t, token in enumerate(TEXT):
        before = PROMPT + TEXT[:t]
        logits = row(loaded.target, size, before)
        q = warp_of(cell)(logits)
        assert written.q[t] == pytest.approx(float(q[token]), abs=1e-6)
        if t >= reach:  # the draft's context is full
            assert along.p[t] == along.overlap[t] == 0
            continue
        own = row(loaded.draft, size, before)
        p, sure = warp_of(cell)(own), warp_of(CELL)(own) if temperature else own.softmax(-1)
        assert along.p[t] == pytest.approx(float(p[token]), abs=1e-6)
        assert along.overlap[t] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-6)
        assert along.peak[t] == pytest.approx(float(sure.max()), abs=1e-6)
        entropy = float(torch.special.entr(sure).sum())
        assert along.entropy[t] == pytest.approx(entropy, abs=1e-5)
        assert along.agrees[t] == bool(own.argmax() == logits.argmax())


@pytest.mark.parametrize(
    ("head", "depth"), first(2, [("eagle3", 8), ("medusa", 4), ("mlp", 4), ("mtp", 8)])
)
def test_slots_of_a_head_are_those_that_its_rounds_draw_from(head, depth, monkeypatch):
    monkeypatch.setattr(target_probs, "PIECE", 7)
    pair = spsbench.load(target="nano", draft=f"nano-{head}", k=4, temperature=0.7, engine="eager")
    cell, loaded = pair.cell, pair.loaded
    draft = DraftTracer("d", [cell], loaded, {})
    layers = draft.drafter.layers
    for t in (0, 3, 12):
        decoder = make(
            "decoders", Spec.parse("native:laws=true"), LoadedDecoderContext(cell, loaded)
        )
        how = {"limits": Limits(30), "warp": warp_of(cell), "noise": PhiloxStream(t)}
        done = next(iter(decoder(PROMPT + TEXT[:t], **how)))
        text = TEXT[:t] + done.probs.tokens + TEXT  # it goes on with what the round drafts
        along = draft.along(PROMPT, text, [*TextTracer(cell, loaded, layers).rows(PROMPT, text)])
        p, overlap = (c.reshape(len(text), -1)[t] for c in (along.p, along.overlap))
        assert (along.depth, p[:4].tolist()) == (depth, pytest.approx(done.probs.p, abs=1e-5))
        assert overlap[: done.tested].sum() == pytest.approx(done.overlap, abs=1e-5)


class Own(Drafter):
    """By rule: the newest token again, as often as `times`."""

    drawn = How.POINT

    def draft(self, context: Context, k: int, noise: Any, go_on: Any) -> Draft:
        return Draft(torch.tensor([context.tokens[-1]] * k), None)


class Looks(Own):
    """It looks at the target's last pass."""

    text_alone = False


class Branches(Own):
    tree = True


class Guesses(Own):
    """Sampled, from who knows what."""

    drawn = How.IID


def drafting(kind):
    """A cell that drafts by a class of this file."""
    own = Spec(f"{__file__}:{kind.__name__}")
    return resolve(CELL.to_request(draft=None, drafter=own, verifier=Spec("auto")))


@pytest.mark.parametrize(("kind", "exact"), [(Own, True), (Looks, False)])
def test_what_is_not_of_the_text_alone_is_told(kind, exact, loaded, monkeypatch):
    _, _, draft = traced(drafting(kind), replace(loaded, draft=None), monkeypatch)
    assert draft.of.exact is exact


@pytest.mark.parametrize("kind", [Branches, Guesses])
def test_what_no_text_can_tell_has_no_trace(kind, loaded):
    assert DraftTracer("d", [drafting(kind)], loaded, {}).untraceable is not None


def test_schedules_that_read_probs_are_asked_along_the_text():
    assert overrides(ByLaw(), Schedule, "go_on")
    assert not overrides(ByHistory(), Schedule, "go_on")
    sure = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.9, 0.1]])
    schedule = ByLaw(lookahead=3, least=0.6)
    # beyond the text nothing is known: as many as it would have asked for
    assert scheduled_slots(schedule, sure, 5, 16).tolist() == [2, 1, 0, 3, 3]


DRAFTERS = {
    "ngram": lambda: NgramDrafter(n=2, min_n=1),
    "suffix": lambda: SuffixDrafter(factor=3.0, least=0.0),
    "hybrid": lambda: HybridDrafter(
        SuffixDrafter(), NgramDrafter(n=2, min_n=1), least=2, vocab_size=3
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_look_ups_are_traced_as_each_k_drafts_them(name):
    """A longer draft of a suffix or a hybrid need not begin as a shorter one."""
    draw = random.Random(1)
    text = [draw.randrange(3) for _ in range(60)]
    nothing, prefill = PhiloxStream(0).round(0), Scores(torch.empty(0, 3), {})
    drafter = DRAFTERS[name]()
    drafter.begin(text[:4], prefill)
    trace = proposed_by_k(drafter, text[:4], text[4:])
    assert bool(trace.requested) is (name != "ngram")
    for k in (1, 2, 3, 8, 64):
        drafter = DRAFTERS[name]()
        drafter.begin(text[:4], prefill)
        for proposed, hits, t in zip(*trace.of(k), range(4, 60), strict=True):
            context = Context(text[:t], Warp(), None)
            tokens = drafter.draft(context, k, nothing, always).tokens.tolist()
            assert min(proposed, k) == len(tokens)
            assert min(hits, k) == count_agreeing(tokens, text, t)
