"""Whole audits of tiny pairs: honest ones hold, and defects planted in the loop are found."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.audit.statistical.greedy import greedy_pair
from spsbench.audit.statistical.positions import DraftPreferred, Followed, Likeliest, of_vocabulary
from spsbench.audit.statistical.referee import AuditText, alternatives_of, referee_of
from spsbench.audit.statistical.texts import AuditJob, NamedPrompt, audit_jobs, perform_in_order
from spsbench.audit.verify import audit_pair
from spsbench.engines.eager import EagerLM
from spsbench.engines.linear_layers import OverStock
from spsbench.loop import decode as loop
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits
from spsbench.methods.resolve import resolve
from spsbench.models.cache import Loaded
from spsbench.settings.cell import CellRequest, WarpSettings
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from tests.folders import byte_tokenizer, random_model
from tests.oracles.defects import Lenient, RowBefore
from tests.workers.inline import inline

CELL = resolve(
    CellRequest(
        target=ModelSpec("t", engine=Spec("eager")),  # the defects are planted there
        draft=ModelSpec("d", engine=Spec("eager")),
        max_new_tokens=24,
        schedule=Spec("constant", (("lookahead", 3),)),
    )
)
LOOKED_UP = resolve(
    CELL.but(draft=None, drafter=Spec("ngram", (("min_n", 1),)), verifier=Spec("auto"))
)


@pytest.fixture(scope="module")
def loaded():
    tokenizer = byte_tokenizer()
    end = frozenset({tokenizer.eos_token_id})
    return Loaded(random_model(), random_model(noise=0.3), tokenizer, len(tokenizer), end, None)


@pytest.fixture(scope="module")
def prompts(loaded):
    words = ("the cat sat", "def value", "print(x", "a mat and a dog")
    return [NamedPrompt(word, tuple(loaded.tokenizer.encode(word))) for word in words]


@pytest.fixture
def audit(loaded, prompts):
    def run(cell=CELL, most=1_500, bias=0.2, **changes):
        return audit_pair(cell, replace(loaded, **changes), prompts, bias=bias, most=most)

    return run


def test_an_honest_pair_holds(audit):
    found = audit()
    assert found.verdict is AuditVerdict.HELD, found.line
    assert found.claim is not None
    assert found.claim <= 0.2
    assert "would have caught a bias of" in found.line
    assert "with probability 0.99; found none" in found.line
    assert found.control.passed
    assert found.plain.tokens > 0.2 * found.audited.tokens


def test_look_ups_hold(audit):
    found = audit(LOOKED_UP, draft=None)
    assert found.verdict is AuditVerdict.HELD, found.line


def test_too_few_tokens_for_what_was_asked_are_not_valid(audit):
    found = audit(most=150, bias=0.05)
    assert found.verdict is AuditVerdict.NOT_VALID
    assert "too few tokens for a bias of 0.05, enough for" in found.line


def never_ends(block, output, limits, *rest):
    return CUT(block, output, Limits(limits.max_new_tokens), *rest)


def bonus_unwarped(self, logits):
    probs = WARP(self, logits)
    return (
        torch.cat([probs[:-1], (logits[-1:] / self.temperature).softmax(-1)])
        if len(probs) > 1
        else probs
    )


def cools(self, logits):
    return WARP(self, logits * 1.5)


def keeps_rejected(self, length, path=None):
    """The cache is cut to the right length, but at its old end."""
    if self.length > length > 0:
        for layer in self._cache.layers:
            drop = self.length - length
            layer.keys, layer.values = layer.keys[:, :, drop:], layer.values[:, :, drop:]
        self._length = length
    else:
        COMMIT(self, length, path)


CUT, WARP, COMMIT = loop.cut_block, Warp.__call__, EagerLM.commit
RULE = "spsbench.methods.verifiers.sps.Sps"
DEFECTS = {
    "the recovered token is drawn from q": (
        "spsbench.methods.verifiers.sps.residual",
        lambda q, p: q,
    ),
    "an EOS is passed over": ("spsbench.loop.decode.cut_block", never_ends),
    "the cache keeps what was rejected": ("spsbench.engines.eager.EagerLM.commit", keeps_rejected),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_in_the_loop_is_found(audit, name):
    with patch(*DEFECTS[name]):
        found = audit(most=6_000, bias=0.05)
    assert found.verdict is AuditVerdict.BIAS, found.line
    assert found.plain.tokens >= found.audited.tokens or found.shared


def test_a_bonus_token_that_is_not_warped_is_impossible(audit):
    one = Spec("constant", (("lookahead", 1),))
    with patch("spsbench.loop.sampling.Warp.__call__", bonus_unwarped):
        found = audit(CELL.but(top_k=4, schedule=one), draft=random_model(noise=0.02))
    assert found.verdict is AuditVerdict.BIAS, found.line
    assert "impossible tokens" in found.line


def test_a_lossy_rule_for_look_ups_is_found(audit):
    lossy = resolve(LOOKED_UP.to_request(verifier=Spec("synthetic", (("alpha", 0.6),))))
    assert audit(lossy, draft=None).verdict is AuditVerdict.BIAS


@pytest.mark.slow
def test_a_defect_that_both_methods_share_is_told_as_such(audit):
    with patch("spsbench.loop.sampling.Warp.__call__", cools):
        found = audit(most=6_000, bias=0.05)
    assert found.verdict is AuditVerdict.BIAS
    assert found.shared
    assert "in plain sampling already" in found.line


class Sharp(OverStock):
    def forward(self, hidden):
        return 3.0 * self._stock[0](hidden)


@pytest.fixture
def packed(loaded):
    """A target in which an engine replaced a layer by one that computes something else."""
    target = random_model()
    target.lm_head = Sharp(target.lm_head)
    return replace(loaded, target=target)


def test_an_engine_that_breaks_the_target_in_place_is_biased(audit, packed):
    found = audit(target=packed.target)
    assert found.verdict is AuditVerdict.BIAS, found.line


def test_the_referee_scores_a_packed_target_in_its_stock_layers(packed, loaded, prompts):
    stock, text = referee_of(CELL, loaded), AuditText(prompts[0].ids, tuple(range(4)), (4,), (0,))
    rows = stock.scorer.logits(text.prompt, text.tokens)
    assert (referee_of(CELL, packed).scorer.logits(text.prompt, text.tokens) == rows).all()
    sharp = packed.target(torch.tensor([text.prompt])).logits[0, -1].detach().cpu().numpy()
    assert sharp == pytest.approx(3.0 * rows[0], abs=1e-4)


def test_an_impossible_token_is_shown_with_its_context(loaded):
    referee = referee_of(CELL.but(top_k=3), loaded)
    prompt = tuple(loaded.tokenizer.encode("the cat"))
    best = referee.scorer.logits(prompt, [0])[0]
    worst, near = int(best.argmin()), int(np.argsort(-best)[3])
    _, (impossible,) = referee.examine(AuditText(prompt, (worst,), (1,), (0,), "a text"), [])
    assert (impossible.position, impossible.token, impossible.before) == (0, worst, prompt[-8:])
    assert "outside the target's support" in impossible.reason
    lax = replace(referee, edge=float(np.sort(best)[-3] - best[near]) + 1e-6)
    assert not lax.examine(AuditText(prompt, (near,), (1,), (0,), "a text"), [])[1]
    text = AuditText(prompt, (min(loaded.eos), 5, 6), (3,), (3,), "")
    whole = replace(referee, warp=WarpSettings())
    ended, over = replace(whole, budget=2).examine(text, [])[1]
    assert (ended.reason, over.reason) == ("after the text had ended", "beyond the budget")
    assert over.before == (*prompt, *text.tokens[:2])[-8:]
    assert not replace(whole, ends=False).examine(text, [])[1]


def test_evidence_is_what_the_probs_say(loaded):
    referee = referee_of(CELL, loaded)
    prompt = tuple(loaded.tokenizer.encode("the cat"))
    tokens = tuple(range(40, 110))
    text = AuditText(prompt, tokens, (3, 1, 66), (3, 0, 65), "")
    (evidence,), _ = referee.examine(text, [DraftPreferred()])
    ((_, target, at),) = referee.positions(text, None)
    q, p = target.probs, at.draft
    inside = p > q
    assert evidence.mass[:, 0] == pytest.approx((q * inside).sum(-1))
    assert evidence.pull == pytest.approx(np.abs(p - q).sum(-1) / 2)
    assert (evidence.hit[:, 0] == inside[np.arange(70), tokens]).all()
    assert evidence.mass[:, 1] == pytest.approx(q.max(-1))
    assert evidence.mass[:, 2] == pytest.approx(q[:, min(loaded.eos)])
    assert evidence.mass[:, 3] == pytest.approx(np.sort(q)[:, :-50].sum(-1))
    assert evidence.index.tolist()[:8] == [0, 1, 2, 0, 0, 1, 2, 3]
    assert np.bincount(evidence.length).tolist() == [16, 48, 6]
    drawn = evidence.drawn.mean((0, 1))
    assert drawn == pytest.approx(evidence.mass.mean(0), abs=0.05)
    assert evidence.favoured[:, evidence.mass[:, 0] > 0, 0].all()


def test_the_alternative_of_each_drafter(loaded):
    alone, other = replace(loaded, draft=None), replace(loaded, draft_tokenizer=loaded.tokenizer)
    pairs = [(CELL, loaded), (CELL, other), (LOOKED_UP, alone)]
    kinds = [type(alternatives_of(cell, models)[0]) for cell, models in pairs]
    assert kinds == [DraftPreferred, Likeliest, Followed]


def test_what_followed_the_newest_two_tokens_is_favoured_else_the_likeliest():
    law = np.full((4, 12), 1 / 12)
    at = of_vocabulary(law, np.array([3, 1, 9, 4]), set(), (3, 1), 0, None)
    favoured, pull = Followed(Likeliest()).favoured(at, (1, 2, 3, 1, 2))
    assert favoured.argmax(-1).tolist() == [3, 1, 2, 0]
    assert (favoured.sum(-1) == 1).all()
    assert pull is None


@dataclass(frozen=True)
class Nothing:
    """The work of a worker that examines nothing."""

    def prepare(self) -> None:
        pass

    def __call__(self, unit: tuple[int, AuditJob]) -> Any:
        return [], []


def test_jobs_of_workers_come_in_order(monkeypatch, prompts):
    inline(monkeypatch, with_work=lambda work: Nothing())
    bench, received = SimpleNamespace(cell=None, referee=SimpleNamespace(edge=0.0)), []

    def receive(job, examined):
        received.append(job)
        return len(received) == 9

    perform_in_order(bench, audit_jobs(prompts), receive, workers=2, access=Access())
    assert received == list(islice(audit_jobs(prompts), 9))


GREEDY = resolve(CELL.to_request(temperature=0.0))


def test_greedy_texts_are_identical(loaded, prompts):
    found = greedy_pair(GREEDY, loaded, prompts[:2])
    assert found.verdict is AuditVerdict.HELD, found.line
    assert found.counts == {GreedyKind.IDENTICAL: 2}
    assert found.planted
    assert found.repeated


def test_a_greedy_bug_is_found(loaded, prompts):
    with patch(RULE, RowBefore):
        found = greedy_pair(GREEDY, loaded, prompts[:2])
    assert found.verdict is AuditVerdict.BIAS
    bug = next(each for each in found.compared if each.kind is GreedyKind.BUG)
    assert bug.logits[0] - bug.logits[1] == pytest.approx(bug.gap, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_half_precision_holds_within_its_band(audit, loaded, dtype):
    narrow = {"target": random_model().to(dtype), "draft": random_model(noise=0.3).to(dtype)}
    found = audit(bias=0.25, most=2_500, **narrow)
    assert found.verdict is AuditVerdict.HELD, found.line
    assert (found.audited.bands[0][:2] > 1e-5).all()
    assert (found.audited.bands[0] < 0.03).all()
    with patch(RULE, partial(Lenient, 0.5)):
        assert audit(bias=0.1, most=6_000, **narrow).verdict is AuditVerdict.BIAS
