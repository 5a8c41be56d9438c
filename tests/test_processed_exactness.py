"""Speculation under processors, proved: every exact rule with every kind of draft, K up to 4.

By the enumeration of `tests/test_exactness.py`; what is expected is computed by the audit's own
`audit.statistical.processed`. `tests/oracles/defects.py` says what these walks see.
"""

import pytest

from spsbench.audit.exact.cases import MIXED, Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.pairings import drafter_kinds, made_drafter
from spsbench.audit.exact.tables import ToyPair
from spsbench.methods.schedules.by_history import Constant
from spsbench.registry import BUILT_IN
from spsbench.settings.processors import Processors
from tests.automata import FORKS, case_of

RULES = {e.name: e.load()() for e in BUILT_IN if (e.kind, e.guarantee) == ("verifiers", "exact")}
EOS = frozenset({1})
EACH = {
    "bias": Processors(biases=((0, 1.0), (1, -0.5))),
    "repetition": Processors(repetition=1.7),
    "repetition of the answer": Processors(repetition=0.6, of_answer=True),
    "frequency": Processors(frequency=0.8),
    "presence": Processors(presence=-0.6),
    "ngram": Processors(ngram=3),
    "word": Processors(words=((1, 0),)),
    "least": Processors(least=2, eos=EOS),
    "penalties": Processors(repetition=1.3, frequency=0.4, presence=0.3),
    "penalties and bans": MIXED,
    "all": Processors(((0, 0.5),), 1.2, True, 0.3, -0.2, 4, ((0, 1, 1),), 2, EOS),
}
QUICK = {
    ("sps", "model"), ("block", "model"), ("match", "ngram"), ("match", "tli"),
    ("recursive", "(i.i.d. siblings)"), ("traversal", "(distinct siblings)"),
    ("spectr", "(i.i.d. siblings)"), ("match", "(fixed tree)"), ("match", "hybrid"),
}  # fmt: skip
WARPS = {"plain": {}, "cut": {"temperature": 1.5, "top_k": 2}, "greedy": {"temperature": 0.0}}


def pairings():
    """Rule and kind of draft, of which a pairing of each kind is quick."""
    for kind in drafter_kinds():
        try:
            probe = made_drafter(kind.make)
        except Exception:
            continue
        if probe.layers:
            continue
        for name, rule in RULES.items():
            if rule.refuses(probe.drawn, probe.tree) is None:
                marks = [] if (name, kind.name) in QUICK else [pytest.mark.slow]
                yield pytest.param(name, kind, id=f"{name} {kind.name}", marks=marks)


def proof(rule, kind, by, k, vocab=2, warp="plain", **fields):
    pair = ToyPair(vocab, 11, ("plain",))
    return prove(
        Case(
            rule,
            DiscoveredRule(rule, kind.drawn),
            pair.q,
            pair.p,
            vocab,
            tokens=k + 1,
            schedule=Constant(k),
            drafter=kind.make,
            warp=WARPS[warp],
            processors=by,
            prompt=(0, 1, 0),
            eos=by.eos,
            **fields,
        )
    )


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize(("name", "kind"), [*pairings()])
def test_a_pairing_is_exact_under_processors(name, kind, k):
    rule, quick = RULES[name], (name, kind.name) in QUICK
    many = kind.how is not None or kind.wide  # a tree of many draws
    if k > 2 and (quick or many):
        pytest.skip("too many paths")
    vocab = 4 if kind.name == "(fixed siblings)" else 2  # it drafts token 3
    for by in ("penalties and bans",) if quick else EACH:
        assert proof(rule, kind, EACH[by], k, vocab, one_round=k > 2 or many).exact, by


@pytest.mark.slow
@pytest.mark.parametrize("by", EACH)
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("name", ["sps", "block", "match"])
def test_three_tokens_are_exact_under_each_processor(name, warp, by):
    kind = next(kind for kind in drafter_kinds() if kind.name == "model")
    assert proof(RULES[name], kind, EACH[by], 2, vocab=3, warp=warp).exact


@pytest.mark.parametrize("by", ["repetition", "penalties and bans"])
def test_a_grammar_and_processors_are_exact_together(by):
    case = case_of(FORKS, ToyPair(3, 4, ("plain", "ties", "equal")), tokens=3)
    case.processors = EACH[by]
    assert prove(case).exact
