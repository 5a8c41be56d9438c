"""What a trace holds, against models asked one token at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spsbench.benchmark import target_laws, trace_draft
from spsbench.benchmark.target_laws import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer, overrides, stopped
from spsbench.loop.types import Context, Draft, Drafter, Schedule, Scores
from spsbench.loop.types import Drawn as How
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.resolve import resolve, warp
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.traces import Drawn, Proposed
from tests.folders import byte_tokenizer, random_model
from tests.parts import ByHistory, ByLaw

PROMPT = [ord(c) for c in "the cat sat on the mat"]
TEXT = [ord(c) for c in " and the cat sat on the hat"]
EAGER = Spec("eager")
CELL = resolve(
    Cell(
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
        return model(input_ids=torch.tensor([list(text)])).logits[0, -1, :size]


def traced(cell, loaded, monkeypatch):
    monkeypatch.setattr(target_laws, "PIECE", 7)  # pieces that end inside the text
    text = TextTracer(resolve(cell.auto_regressive), loaded)
    draft = DraftTracer("d", [cell], loaded, {})
    laws = list(text.laws(PROMPT, TEXT))
    written = text.written(("c", "s", 0), PROMPT, TEXT, "length", laws)
    return written, draft.along(PROMPT, TEXT, laws), draft


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_columns_are_those_of_one_token_at_a_time(temperature, loaded, monkeypatch):
    cell = resolve(CELL.but(temperature=temperature))
    written, along, draft = traced(cell, loaded, monkeypatch)
    assert isinstance(along, Drawn)
    assert draft.untraceable is None
    assert (written.budget, written.prompt_tokens) == (40, len(PROMPT))
    size, reach = loaded.vocab_size, 40 - len(PROMPT)
    assert along.reach == reach
    for t, token in enumerate(TEXT):
        before = PROMPT + TEXT[:t]
        logits = row(loaded.target, size, before)
        q = warp(cell)(logits)
        assert written.q[t] == pytest.approx(float(q[token]), abs=1e-6)
        if t >= reach:  # the draft's context is full
            assert along.p[t] == along.overlap[t] == 0
            continue
        own = row(loaded.draft, size, before)
        p, sure = warp(cell)(own), warp(CELL)(own) if temperature else own.softmax(-1)
        assert along.p[t] == pytest.approx(float(p[token]), abs=1e-6)
        assert along.overlap[t] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-6)
        assert along.peak[t] == pytest.approx(float(sure.max()), abs=1e-6)
        entropy = float(torch.special.entr(sure).sum())
        assert along.entropy[t] == pytest.approx(entropy, abs=1e-5)
        assert along.agrees[t] == bool(own.argmax() == logits.argmax())


def test_look_ups_are_asked_at_every_position(loaded, monkeypatch):
    cell = resolve(CELL.but(draft=None, drafter=Spec("ngram"), verifier=Spec("auto")))
    _, along, draft = traced(cell, replace(loaded, draft=None), monkeypatch)
    assert isinstance(along, Proposed)
    assert draft.of.exact
    for t in range(len(TEXT)):
        asked = NgramDrafter()
        asked.begin(PROMPT, Scores(torch.empty(0, 1), {}))
        context = Context(PROMPT + TEXT[:t], warp(cell), None)
        found = asked.draft(
            context, trace_draft.MAX_LOOKAHEAD, None, lambda p: torch.tensor(True)
        ).tokens
        assert along.proposed[t] == len(found)
        ahead = TEXT[t : t + len(found)]
        same = [int(a == b) for a, b in zip(found.tolist(), ahead, strict=False)]
        assert along.hits[t] == np.cumprod(same).sum()
    assert along.hits.max() > 3


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
    return resolve(CELL.but(draft=None, drafter=own, verifier=Spec("auto")))


@pytest.mark.parametrize(("kind", "exact"), [(Own, True), (Looks, False)])
def test_what_is_not_of_the_text_alone_is_told(kind, exact, loaded, monkeypatch):
    _, _, draft = traced(drafting(kind), replace(loaded, draft=None), monkeypatch)
    assert draft.of.exact is exact


@pytest.mark.parametrize("kind", [Branches, Guesses])
def test_what_no_text_can_tell_has_no_trace(kind, loaded):
    assert DraftTracer("d", [drafting(kind)], loaded, {}).untraceable is not None


def test_schedules_that_read_laws_are_asked_along_the_text():
    assert overrides(ByLaw(), Schedule, "go_on")
    assert not overrides(ByHistory(), Schedule, "go_on")
    sure = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.9, 0.1]])
    schedule = ByLaw(lookahead=3, least=0.6)
    # beyond the text nothing is known: as many as it would have asked for
    assert stopped(schedule, sure, 5, 16).tolist() == [2, 1, 0, 3, 3]
