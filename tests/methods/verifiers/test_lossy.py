"""Lossy rules keep the distribution that they state, and are labelled."""

import operator
from itertools import accumulate, pairwise

import pytest
import torch

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import ToyPair
from spsbench.errors import DataError, PlugInError
from spsbench.loop.guards import relaxing_of
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Drawn, Guarantee
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.chain_rules import Ensemble, Lenient, Synthetic, synthetic_rates
from spsbench.methods.verifiers.set_acceptance import TopK, Typical, longest
from spsbench.methods.verifiers.sps import Sps
from spsbench.plugins import make
from spsbench.registry import entries
from spsbench.spec import Spec

RULES = [Lenient(0.3), Lenient(0.9), Ensemble(0.4), Typical(), Typical(0.35, 1.0), TopK(2)]
every = pytest.mark.parametrize("rule", RULES, ids=str)
PROMPT = (0, 1)


def first_token(rule, pair, **more):
    """The distribution of the first token, by enumeration of the shipping loop at K = 1."""
    return walked(rule, pair, **more)[0]


def walked(rule, pair, **more):
    """The same, and the chance that the drafted token is kept."""
    drawn = {} if "drafter" not in more else {"drafter": more.pop("drafter")}
    setting = {"tokens": 2, "schedule": Constant(1), "prompt": PROMPT} | more
    case = Case(rule, DiscoveredRule(rule), pair.q, pair.p, pair.vocab, **drawn, **setting)
    proof = prove(case)
    assert proof.whole
    law = [
        sum(chance for (text, _), chance in proof.low.items() if text[0] == x)
        for x in range(pair.vocab)
    ]
    return law, proof.emitted - 1


def laws(pair):
    return tuple(torch.tensor(law(PROMPT), dtype=torch.float64) for law in (pair.q, pair.p))


def stated_by(rule, q, p):
    """The distribution of a drafted slot by a rule's docstring, and the draft's part of it."""
    if isinstance(rule, Ensemble):
        mixed = rule.w * p + (1 - rule.w) * q
        return mixed, torch.minimum(p, mixed)
    lenient = isinstance(rule, Lenient)
    kept = torch.minimum(p, q / rule.l) if lenient else p * rule.allowed(q)
    left = (q - p).clamp(min=0) if lenient else q
    return kept + (1 - kept.sum()) * left / left.sum(), kept


@every
@pytest.mark.parametrize(
    "pair", [ToyPair(3, 2, ("plain",)), ToyPair(4, 7, ("zeros",))], ids=["a", "b"]
)
def test_the_stated_distribution_is_what_comes_out(rule, pair):
    q, p = laws(pair)
    stated, part = stated_by(rule, q, p)
    assert float(stated.sum()) == pytest.approx(1, abs=1e-12)
    law, kept = walked(rule, pair)
    assert law == pytest.approx(stated.tolist(), abs=1e-12)
    assert kept == pytest.approx(float(part.sum()), abs=1e-12)


def leniently(pair, ell, k, tokens):
    """A greedy text under lenience, from the tables alone."""
    text = list(PROMPT)
    end = len(PROMPT) + tokens
    while len(text) < end:
        draft = []
        while len(draft) < min(k, end - len(text) - 1):
            draft.append(likeliest(pair.p((*text, *draft))))
        for token in draft:
            law = pair.q(tuple(text))
            near = law[token] >= ell * max(law)
            text.append(token if near else likeliest(law))
            if not near:
                break
        else:
            text.append(likeliest(pair.q(tuple(text))))
    return tuple(text[len(PROMPT) :])


def likeliest(law):
    return law.index(max(law))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("ell", [1.0, 0.8, 0.5, 0.2])
def test_lenient_greedy_text_is_within_l_of_the_likeliest(ell, k):
    texts = []
    for seed in range(5):
        pair = ToyPair(3, seed, ("plain",))
        greedy = {"warp": {"temperature": 0.0}, "tokens": 5, "schedule": Constant(k)}
        case = Case(
            Lenient(ell), DiscoveredRule(Lenient(ell)), pair.q, pair.p, 3, prompt=PROMPT, **greedy
        )
        ((text, _),) = prove(case).low
        assert tuple(text) == leniently(pair, ell, k, 5)
        texts.append(tuple(text) == leniently(pair, 1.0, k, 5))
    assert all(texts) is (ell == 1)


def test_relaxed_probs_of_another_shape_name_the_rule():
    class Narrow(Sps):
        def relax(self, draft, q, sure):
            return sure[:1, :2]

    logits = torch.zeros(5, 8)
    assert relaxing_of(Narrow(), Warp())(DRAFT, EVEN, logits) is EVEN
    with pytest.raises(PlugInError):
        relaxing_of(Narrow(), Warp(temperature=0.0))(DRAFT, EVEN, logits)


@pytest.mark.parametrize("rule", [Typical(0.2, 1.0), TopK(2)], ids=str)
def test_of_drafts_by_rule_what_is_allowed_comes_with_certainty(rule):
    pair = ToyPair(3, 2, ("plain",))
    q, _ = laws(pair)
    for token in range(3):
        found = first_token(rule, pair, drafter=lambda lm, t=token: FixedDrafter([t]))
        certain = [float(x == token) for x in range(3)]
        allowed = bool(rule.allowed(q)[token])
        assert found == pytest.approx(certain if allowed else q.tolist(), abs=1e-12)


def test_what_is_allowed():
    q = torch.tensor([0.5, 0.3, 0.1, 0.1, 0.0])
    assert TopK(2).allowed(q).tolist() == [True, True, False, False, False]
    assert TopK(3).allowed(q).tolist() == [True, True, True, True, False]  # a tie
    assert TopK(5).allowed(q).tolist() == [True, True, True, True, False]
    assert TopK(50).allowed(q).tolist() == [True, True, True, True, False]
    # H = 1.168 nats: 0.3 exp(-H) = 0.0933, more than epsilon
    assert Typical(0.09, 0.3).allowed(q).tolist() == [True, True, True, True, False]
    assert Typical(0.11, 0.3).allowed(q).tolist() == [True, True, True, True, False]
    assert Typical(0.11, 0.4).allowed(q).tolist() == [True, True, False, False, False]


def test_the_longest_path_and_of_equal_ones_the_likeliest():
    parents = [-1, -1, 0, 1, 1, 3]
    chances = [-1.0, -2.0, -1.0, -0.1, -3.0, -9.0]
    assert longest(parents, [True] * 6, chances) == [1, 3, 5]
    assert longest(parents, [True] * 5 + [False], chances) == [0, 2]  # -2.0 beats -2.1
    assert longest(parents, [False, True, True, False, True, True], chances) == [1, 4]
    assert longest(parents, [False] * 6, chances) == []
    assert longest([-1, -1], [True, True], [-1.0, -1.0]) == [0]


def test_they_are_labelled_and_refuse_what_has_no_distribution():
    listed = {each.name: each.guarantee for each in entries("verifiers")}
    for name in ("lenient", "ensemble", "typical", "topk"):
        rule = make("verifiers", Spec(name))
        assert (listed[name], rule.guarantee) == ("lossy", Guarantee.LOSSY)
        divides = name in ("lenient", "ensemble")
        assert (rule.refuses(Drawn.POINT, False) is not None) is divides
        assert (rule.refuses(Drawn.IID, True) is not None) is divides
        assert rule.refuses(Drawn.IID, False) is None


EVEN = torch.full((5, 8), 1 / 8)
DRAFT = Draft(torch.tensor([1, 2, 3, 4]), EVEN[:4])


def accepted(rule, index):
    verdict = rule(DRAFT, EVEN, PhiloxStream(0).round(index))
    kept = [node for node in verdict.path.tolist() if node >= 0]
    assert kept == list(range(len(kept)))
    assert int(verdict.tested) == min(len(kept) + 1, 4)
    return len(kept)


def test_the_synthetic_rate_is_the_given_one():
    assert {accepted(Synthetic(1.0), i) for i in range(20)} == {4}
    assert {accepted(Synthetic(0.0), i) for i in range(20)} == {0}
    counts = [accepted(Synthetic(0.8), i) for i in range(1000)]
    expected = 0.8 + 0.8**2 + 0.8**3 + 0.8**4
    assert sum(counts) / len(counts) == pytest.approx(expected, abs=0.16)


def chances(shape, length):
    """Of keeping 0, 1, .. 4 tokens, by the chances of each."""
    reached = [1.0, *accumulate(synthetic_rates(shape, length, 4), operator.mul), 0.0]
    return [before - after for before, after in pairwise(reached)]


@pytest.mark.parametrize("length", [1.0, 2.5, 3.24, 5.0])
def test_a_synthetic_length_is_the_mean_of_a_round_by_three_laws(length):
    least, equal, normal = (chances(shape, length) for shape in ("minvar", "geometric", "normal"))
    for law in (least, equal):
        assert sum(n * chance for n, chance in enumerate(law, 1)) == pytest.approx(length)
    below = int(length)
    assert [n for n, chance in enumerate(least, 1) if chance > 1e-9] == (
        [below] if length == below else [below, below + 1]
    )
    steps = [b / a for a, b in pairwise(accumulate(equal[::-1])) if a]  # of n or more: no memory
    assert length in (1.0, 5.0) or len({round(step, 9) for step in steps[1:]}) == 1
    rounded = torch.normal(length, 1.0, (200_000,), generator=torch.Generator().manual_seed(0))
    drawn = rounded.clamp(1, 5).round().long().bincount(minlength=6)[1:] / 200_000
    assert normal == pytest.approx(drawn.tolist(), abs=0.005)


def test_a_golden_file_has_the_length_of_each_k(tmp_path):
    file = tmp_path / "golden.yaml"
    file.write_text("# measured\nmodel:\n  thinking_on: {1: 2, 4: 3.5}\n  thinking_off: {4: 1}\n")
    rule = Synthetic(length=str(file), curve="thinking_on")
    counts = [accepted(rule, i) for i in range(400)]
    assert set(counts) == {2, 3}
    assert sum(counts) / 400 == pytest.approx(2.5, abs=0.1)
    assert {accepted(Synthetic(length=str(file), curve="thinking_off"), i) for i in range(9)} == {0}
    one = Draft(DRAFT.tokens[:1], EVEN[:1])
    assert rule(one, EVEN[:2], PhiloxStream(0).round(0)).path.tolist() == [0]
    with pytest.raises(DataError):  # five tokens, of which the file says nothing
        rule(Draft(torch.arange(5), EVEN[:5]), EVEN, PhiloxStream(0).round(0))


OTHER = "|[1]|a: 1|a: {x: {}}|a: {x: {4: 5.5}}|a: {x: {4: .9}}|a: {x: {4: .nan}}|a: {x: {y: 2}}"
MORE = "a: [|a: {x: {4: 2}, y: {4: 2}}|a: &b [*b]|a: {x: {4: '2'}}"


@pytest.mark.parametrize("text", [*OTHER.split("|"), *MORE.split("|")])
def test_a_file_of_another_form_is_refused(text, tmp_path):
    file = tmp_path / "golden.yaml"
    file.write_text(text)
    with pytest.raises(DataError):
        Synthetic(length=str(file))
