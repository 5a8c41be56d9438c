"""The vectorised rules against scalar ones fed the same uniforms, and the unit interval's ends.

The law of each rule is proved in `tests/test_exactness.py`; here each single verdict is compared.
"""

import math
import random
from fractions import Fraction

import pytest
import torch

from spsbench.audit.exact.queries import Given, quietly
from spsbench.loop import sampling
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import residual, sample
from spsbench.loop.types import Draft, Drawn, Guarantee, Purpose
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.chain_rules import Rejection
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal


class Fixed:
    """Noise that returns what it was given."""

    def __init__(self, accept: float, final: float = 0.5) -> None:
        self.values = {Purpose.ACCEPT: accept, Purpose.FINAL: final, Purpose.PLAIN: final}

    def uniform(self, purpose, n):
        return torch.full((n,), self.values[purpose], dtype=torch.float64)


def laws(rng, rows, vocab):
    """Rows with zeros, and at times all alike."""
    weights = torch.zeros(rows, vocab, dtype=torch.float64)
    for row in weights:
        row += torch.tensor([rng.choice([0, 0.2, rng.random()]) for _ in range(vocab)])
    weights[:, rng.randrange(vocab)] += 0.5
    return weights / weights.sum(-1, keepdim=True)


def some_draft(rng, n, vocab):
    q, p = laws(rng, n + 1, vocab), laws(rng, n, vocab)
    if rng.random() < 0.7 and n:
        p = 0.7 * q[:-1] + 0.3 * p  # near enough that several are kept
    u = torch.tensor([rng.random() for _ in range(n)], dtype=torch.float64)
    tokens = sample(p, u) if n else torch.empty(0, dtype=torch.int64)
    return Draft(tokens, p if n else None), q


def path(verdict):
    kept = [node for node in verdict.path.tolist() if node >= 0]
    assert verdict.path.tolist() == kept + [-1] * (len(verdict.path) - len(kept))
    return kept


def scalar_sps(draft, q, noise):
    n = len(draft.tokens)
    u, last = noise.uniform(Purpose.ACCEPT, n), noise.uniform(Purpose.FINAL, 1)[0]
    for i, x in enumerate(draft.tokens.tolist()):
        if not float(u[i]) < min(1.0, float(q[i, x] / draft.probs[i, x])):
            return i, int(sample(residual(q[i], draft.probs[i]), last)), i + 1
    return n, int(sample(q[n], last)), n


def scalar_rejection(draft, q, noise):
    n = len(draft.tokens)
    u, last = noise.uniform(Purpose.ACCEPT, n), noise.uniform(Purpose.FINAL, 1)[0]
    for i, x in enumerate(draft.tokens.tolist()):
        pairs = [*zip(q[i].tolist(), draft.probs[i].tolist(), strict=True)]
        greatest = max(a / b if b else math.inf for a, b in pairs if a or b)
        if not float(u[i]) < pairs[x][0] / pairs[x][1] / greatest:
            return i, int(sample(q[i], last)), i + 1
    return n, int(sample(q[n], last)), n


def scalar_block(draft, q, noise):
    n = len(draft.tokens)
    u, last = noise.uniform(Purpose.ACCEPT, n), noise.uniform(Purpose.FINAL, 1)[0]
    weight, kept, kept_weight = 1.0, 0, 1.0
    for i, x in enumerate(draft.tokens.tolist(), start=1):
        weight = min(1.0, weight * float(q[i - 1, x] / draft.probs[i - 1, x]))
        chance = weight
        if i < n:
            over = float((weight * q[i] - draft.probs[i]).clamp(min=0).sum())
            chance = over / (over + 1 - weight) if over + 1 - weight > 0 else 1.0
        if float(u[i - 1]) < chance:
            kept, kept_weight = i, weight
    law = q[n] if kept == n else residual(kept_weight * q[kept], draft.probs[kept])
    return kept, int(sample(law, last)), -1


def scalar_match(draft, q, noise):
    n = len(draft.tokens)
    u = noise.uniform(Purpose.PLAIN, n + 1)
    for i, x in enumerate(draft.tokens.tolist()):
        own = int(sample(q[i], u[i]))
        if own != x:
            return i, own, i + 1
    return n, int(sample(q[n], u[n])), n


SCALAR = [
    (Sps(), scalar_sps),
    (Rejection(), scalar_rejection),
    (Block(), scalar_block),
    (Match(), scalar_match),
    (Traversal(), scalar_block),
    (Recursive(), scalar_sps),
    (SpecTr(), scalar_sps),
]
by_name = {"ids": lambda part: type(part).__name__}


@pytest.mark.parametrize(("rule", "scalar"), SCALAR, **by_name)
def test_a_verdict_is_the_scalar_rule_s(rule, scalar):
    rng, lengths = random.Random(5), set()
    for index in range(400 if isinstance(rule, Sps | Block | Match) else 120):
        n = rng.randrange(6)
        draft, q = some_draft(rng, n, rng.randrange(2, 7))
        noise = PhiloxStream(1).round(index)
        verdict = rule(draft, q, noise)
        kept, token, tested = scalar(draft, q, noise)
        assert path(verdict) == list(range(kept))
        assert (int(verdict.token), int(verdict.tested)) == (token, tested)
        lengths.add((n, kept))
    assert len(lengths) > 12


@pytest.mark.parametrize("rule", [Sps(), Rejection(), Block()], **by_name)
@pytest.mark.parametrize("final", [0.0, 1 - 2**-53])
def test_a_token_that_the_target_rules_out_is_never_kept(rule, final):
    """Even at u = 0, and the token in its place has a probability."""
    q = torch.tensor([[0.0, 0.6, 0.4, 0.0]] * 3)
    p = torch.tensor([[0.9, 0.05, 0.0, 0.05]] * 2)
    verdict = rule(Draft(torch.tensor([0, 0]), p), q, Fixed(0.0, final))
    assert path(verdict) == []
    assert int(verdict.token) in (1, 2)


@pytest.mark.parametrize("rule", [Sps(), Rejection(), Block()], **by_name)
def test_a_draft_from_the_target_s_own_law_is_kept_whole(rule):
    q = torch.tensor([[0.25, 0.5, 0.25]] * 3)
    verdict = rule(Draft(torch.tensor([2, 1]), q[:2]), q, Fixed(1 - 2**-53))
    assert path(verdict) == [0, 1]


def test_what_each_rule_refuses():
    for rule in Sps(), Rejection(), Block():
        assert rule.refuses(Drawn.IID, False) is None
        assert "use verifier traversal" in rule.refuses(Drawn.IID, True)
        assert "use verifier match" in rule.refuses(Drawn.POINT, True)
        assert "by rule" in rule.refuses(Drawn.POINT, False)
        assert "without replacement" in rule.refuses(Drawn.DISTINCT, False)
    for rule in Match(), Traversal(), Recursive():
        assert {rule.refuses(drawn, tree) for drawn in Drawn for tree in (False, True)} == {None}
    for rule in [SpecTr()]:
        assert rule.refuses(Drawn.IID, True) is rule.refuses(Drawn.IID, False) is None
        assert "use verifier match" in rule.refuses(Drawn.POINT, True)
        assert "use verifier traversal" in rule.refuses(Drawn.DISTINCT, True)
    assert {rule.guarantee for rule, _ in SCALAR} == {Guarantee.EXACT}


def test_rejection_without_iteration_keeps_the_law_in_fractions():
    q = [Fraction(1, 2), Fraction(1, 6), Fraction(1, 3)]
    p = [Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)]
    greatest = max(a / b for a, b in zip(q, p, strict=True))
    kept = [b * (a / (greatest * b)) for a, b in zip(q, p, strict=True)]
    assert sum(kept) == 1 / greatest == Fraction(2, 5)
    assert [k + (1 - sum(kept)) * a for k, a in zip(kept, q, strict=True)] == q
    assert sum(map(min, q, p)) == Fraction(2, 3)  # what `sps` keeps
    laws = (torch.tensor([[float(x) for x in law]], dtype=torch.float64) for law in (q, p))
    rows, drawn = next(laws).repeat(2, 1), next(laws)
    for token, chance in enumerate(k / b for k, b in zip(kept, p, strict=True)):
        draft = Draft(torch.tensor([token]), drawn)
        below, above = (float(chance) + sign * 1e-9 for sign in (-1, 1))
        assert path(Rejection()(draft, rows, Fixed(below))) == [0]
        kept_above = [0] if chance == 1 else []
        assert path(Rejection()(draft, rows, Fixed(min(above, 1 - 2**-53)))) == kept_above


def test_a_tree_without_nodes_is_a_plain_step():
    empty = torch.empty(0, dtype=torch.int64)
    for rule in Match(), Traversal(), Recursive(), SpecTr():
        verdict = rule(Draft(empty, None, empty), torch.tensor([[0.0, 1.0]]), Fixed(0.5))
        assert (verdict.path.tolist(), int(verdict.token)) == ([], 1)
        assert verdict.path.dtype == torch.int64


def a_tree(rng, parents, vocab, drawn):
    """Siblings of laws that are near enough to keep some; equal texts have equal laws."""
    texts = [()]
    known = {}

    def laws_after(text):
        if text not in known:
            q, p = laws(rng, 2, vocab)
            known[text] = q, 0.6 * q + 0.4 * p
        return known[text]

    for node, parent in enumerate(parents):
        law = laws_after(texts[parent + 1])[1].clone()
        if drawn is not Drawn.IID:
            law[[t[-1] for t, p in zip(texts[1:], parents[:node], strict=True) if p == parent]] = 0
        token = sample(law, torch.tensor(rng.random(), dtype=torch.float64))
        texts.append((*texts[parent + 1], int(token)))
    probs = torch.stack([laws_after(texts[parent + 1])[1] for parent in parents])
    rows = torch.stack([laws_after(text)[0] for text in texts])
    tokens = torch.tensor([text[-1] for text in texts[1:]])
    above = None if parents == list(range(-1, len(parents) - 1)) else torch.tensor(parents)
    return Draft(tokens, None if drawn is Drawn.POINT else probs, above, drawn), rows


TREES = (
    [-1, -1, -1, 0, 0, 1, 4, 4, 2],
    [-1, -1, 0, 0, 1, 1, 4],
    [-1, -1, 0, 1, 2, 3],
    [-1, 0, 1, 2],
)
WALKS = [Sps(), Match()]


@pytest.mark.parametrize("rule", WALKS, **by_name)
def test_a_walk_ends_where_the_tables_say(rule, monkeypatch):
    """On a device all is decided by tables, in one piece or in many; so it is under vmap."""
    rng, ends = random.Random(3), set()
    settings = torch.rand(40, len(Purpose), 12, generator=torch.Generator().manual_seed(1)).double()
    settings[0], settings[1] = 0.0, 1 - 2**-53
    for index in range(24):
        parents, drawn = TREES[index % len(TREES)], list(Drawn)[index // len(TREES) % 3]
        draft, q = a_tree(rng, parents, 6, drawn)
        if rule.refuses(draft.drawn, draft.parents is not None):
            continue
        monkeypatch.setattr(sampling, "PIECE", 1 if index % 2 else 1 << 17)
        with quietly():
            found = torch.func.vmap(lambda u: tuple(rule(draft, q, Given(u))))(settings)  # noqa: B023
        for setting, *tables in zip(settings, *found, strict=True):
            walk = rule(draft, q, Given(setting))
            assert [x.tolist() for x in walk] == [x.tolist() for x in tables]
            ends.add(tuple(path(walk)))
    assert len(ends) > 2


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Sps(), Block()], **by_name)
def test_acceptance_over_a_large_vocabulary(rule):
    """One token drafted of 50,000 is kept with probability sum min(p, q), in 4 deviations."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 50_000, generator=generator).double()
    q, p = (2 * noise[0]).softmax(-1), (2 * noise[0] + 0.7 * noise[1]).softmax(-1)
    alpha, n, kept = float(torch.minimum(p, q).sum()), 4000, 0
    for index in range(n):
        fresh = PhiloxStream(2).round(index)
        draft = Draft(sample(p, fresh.uniform(Purpose.DRAFT, 1)[0])[None], p[None])
        kept += len(path(rule(draft, torch.stack([q, q]), fresh)))
    assert abs(kept - n * alpha) < 4 * (n * alpha * (1 - alpha)) ** 0.5
