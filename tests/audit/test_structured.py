"""Texts under a grammar: their distribution, and planted defects that the enumeration sees."""

import math
import random
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

from spsbench.audit.exact.cases import warp_probs
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import tree_cells, tree_kind
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.pairings import STAND_INS, draft_kind_of, pairings
from spsbench.audit.exact.tables import ToyPair
from spsbench.errors import SpsError
from spsbench.loop.constraint import Constraint, DeadEndError
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Drawn, Guarantee, Scores
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.plugins import make
from spsbench.settings.cell import CONSTANT
from spsbench.spec import Spec
from tests.automata import (
    BRANCHES,
    FORKS,
    PAIRS,
    STRUCTURED,
    ConstrainedLM,
    TableAutomaton,
    case_of,
)
from tests.variants import first

LONG_PROMPT = (0, 1, 0, 1, 0)  # n-grams find a match


def drafter_under_grammar(kind):
    """A drafter over a masked table; None where tables cannot serve it."""
    lm = ConstrainedLM(ToyPair(2, 3, ("plain",)).p, FORKS.vocab)
    try:
        drafter = kind.make(lm)
    except (SpsError, ValueError, TypeError, AttributeError):
        return None
    return None if drafter.layers else drafter


def proofs_under_grammars(verifier, kind):
    """Yield the proofs of all cases; drafters with rounds of their own have one round of K = 2."""
    least = min((one.pair.vocab for one in kind.rounds), default=0)
    raw = kind.name == "tli"  # which draws without a mask
    for _, table, pair, options in STRUCTURED:
        fields = options | ({"tokens": 3, "one_round": True} if least else {})
        greedy = fields.get("warp") == {"temperature": 0.0}
        if pair.vocab >= least and (greedy or verifier.guarantee is not Guarantee.GREEDY):
            fields |= {"prompt": LONG_PROMPT, "drafter": kind.make, "raw": raw}
            yield prove(case_of(table, pair, verifier, kind.drawn, **fields))


@pytest.mark.parametrize(
    ("verifier", "drafter"),
    first(
        3,
        [
            ("sps", "model"),
            ("match", "grammar"),
            ("traversal", "(distinct siblings)"),
            ("sps", "hybrid:first=grammar,then=model,least=1"),
        ],
    ),
)
def test_rules_are_exact_under_grammars(verifier, drafter):
    kind = STAND_INS.get(drafter) or draft_kind_of(Spec.parse(drafter))
    proofs = list(proofs_under_grammars(make("verifiers", Spec(verifier)), kind))
    assert all(proof.exact and proof.distance < 1e-12 for proof in proofs)
    assert sum(proof.paths for proof in proofs) > 8


@pytest.mark.slow
@pytest.mark.timeout(900)  # 2 minutes of a core
def test_every_rule_is_exact_under_grammars():
    checked = set()
    for pairing in pairings():
        kind = STAND_INS.get(pairing.drafter) or draft_kind_of(Spec.parse(pairing.drafter))
        verifier = make("verifiers", pairing.verifier)
        drafter = drafter_under_grammar(kind)
        allowed = drafter and verifier.refuses(drafter.drawn, drafter.tree) is None
        if allowed and pairing.schedule == CONSTANT and verifier.guarantee is not Guarantee.LOSSY:
            checked.add(pairing)
            assert all(proof.exact for proof in proofs_under_grammars(verifier, kind)), pairing
    assert len(checked) > 40


def test_temperature_and_mask_commute():
    """The distribution of a temperature and a mask is written down in the other order."""
    pair = ToyPair(3, 6, ("plain",))
    case = case_of(FORKS, pair, warp={"temperature": 1.5})
    hand = replace(case, q=FORKS.constrained(warp_probs(pair.q, temperature=1.5), 2), warp={})
    expected, other = case.expected(), hand.expected()
    assert all(expected[text] == pytest.approx(other[text], abs=1e-14) for text in expected)
    assert prove(case).exact


class Raw(ModelDrafter):
    """Draws from the distribution without a mask, and reports it."""

    def draft(self, context, *rest):
        return super().draft(context._replace(constraint=None), *rest)


def test_a_raw_draft_distribution_is_exact_if_it_is_reported():
    """p need not be masked: tokens that the grammar refuses are then drafted and rejected."""
    assert prove(case_of(FORKS, ToyPair(3, 2, ("plain",)), raw=True, drafter=Raw)).exact


# Defects that the enumeration must see.


class RowBefore(Constraint):
    """Each row has the mask of the row before it."""

    def allowed(self, outputs):
        outputs = list(outputs)
        return super().allowed([outputs[0], *outputs[:-1]])


class BonusUnmasked(Constraint):
    """The last row has no mask."""

    def allowed(self, outputs):
        rows = super().allowed(outputs)
        rows[-1] |= len(rows) > 1
        return rows


class SiblingsMask(Constraint):
    """A node has the mask of the node that was drafted before it."""

    def allowed(self, outputs):
        outputs = list(outputs)
        return super().allowed([*outputs[:2], *outputs[1:-1]])


class CutsFirst(Constraint):
    """Top-p comes before the mask."""

    def masked(self, scores, *rest):
        return super().masked(scores._replace(logits=Warp(top_p=0.6)(scores.logits).log()), *rest)


class Stuck(TableAutomaton):
    """Nothing is rolled back."""

    def back(self, tokens):
        pass


class Ends(TableAutomaton):
    """A text may end anywhere."""

    def allowed(self):
        mask = super().allowed()
        mask[self._table.eos] = True
        return mask


class ReportsMasked(Raw):
    """Draws from the raw distribution, and reports the masked one."""

    def draft(self, context, *rest):
        draft, constraint = super().draft(context, *rest), context.constraint
        laws, output = [], constraint.output(context.tokens)
        for row, token in zip(draft.probs if len(draft.tokens) else (), draft.tokens, strict=True):
            mask = constraint.mask(output)
            row = row.where(mask, 0.0) if mask is not None else row
            laws.append(row / row.sum())
            output += (int(token),)
        return Draft(draft.tokens, torch.stack(laws) if laws else None)


class CutsBeforeRefused(Raw):
    """Draws from the raw distribution, and cuts the draft before the first refused token."""

    def draft(self, context, *rest):
        draft, output = super().draft(context, *rest), context.constraint.output(context.tokens)
        for slot, token in enumerate(draft.tokens.tolist()):
            mask = context.constraint.mask(output)
            if mask is None or not mask[token]:
                return Draft(draft.tokens[:slot], draft.probs[:slot] if slot else None)
            output += (token,)
        return draft


def wrong(case):
    """Whether the enumeration sees a wrong distribution, decisions in wrong places, or an error."""
    try:
        proof = prove(case)
    except (DeadEndError, ZeroDivisionError, ArithmeticError, RuntimeError, ValueError):
        return True
    return not proof.whole or proof.distance > 1e-3


DEFECTS = {
    "mask of the row before": lambda table: {"constraint": partial(table.constraint, RowBefore)},
    "not rolled back": lambda table: {
        "constraint": lambda: Constraint(Stuck(table), frozenset({table.eos}))
    },
    "bonus unmasked": lambda table: {"constraint": partial(table.constraint, BonusUnmasked)},
    "EOS too early": lambda table: {
        "constraint": lambda: Constraint(Ends(table), frozenset({table.eos}))
    },
    "p raw, reported masked": lambda table: {"drafter": ReportsMasked, "raw": True},
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_of_chains_are_seen(defect):
    assert prove(case_of(FORKS, ToyPair(3, 4, ("plain",)))).exact
    assert wrong(case_of(FORKS, ToyPair(3, 4, ("plain",)), **DEFECTS[defect](FORKS)))


def test_a_draft_cut_before_a_refused_token_is_seen():
    """Invariant 4: whether a slot is verified would depend on the value that was drawn for it."""
    raw = case_of(FORKS, ToyPair(3, 4, ("plain",)), tokens=2, raw=True, drafter=Raw)
    assert prove(raw).exact
    biased = replace(raw, drafter=CutsBeforeRefused)
    assert prove(biased).distance > 0.01
    blind = replace(biased, verifier=Match(), rule=DiscoveredRule(Match()))
    assert prove(blind).exact  # one-sample match never looks at p


def test_a_mask_after_top_p_is_seen():
    late = partial(BRANCHES.constraint, CutsFirst)
    for pair in (ToyPair(4, 3, ("plain",)), ToyPair(4, 8, ("plain",))):
        case = case_of(BRANCHES, pair, tokens=2, warp={"top_p": 0.6})
        assert prove(case).exact
        assert wrong(replace(case, constraint=late))


def test_a_siblings_mask_is_seen():
    parents = (-1, -1)
    kind = tree_kind("siblings", parents, Drawn.DISTINCT)
    fields = {
        "drafter": kind.make,
        "drawn": tree_cells(parents, Drawn.DISTINCT),
        "one_round": True,
        "schedule": Constant(2),
    }
    case = case_of(BRANCHES, ToyPair(4, 3, ("plain",)), Traversal(), **fields)
    assert prove(case).exact
    assert wrong(replace(case, constraint=partial(BRANCHES.constraint, SiblingsMask)))


# The masks themselves.


def masked(constraint, text, nodes, parents=None, start=1):
    """The tokens that are allowed after a text and after each node of a draft."""
    vocab = 5 if isinstance(constraint._automaton, Remembers) else 3
    constraint.begin(start, 0, vocab)
    tree = None if parents is None else torch.tensor(parents)
    scores = Scores(torch.zeros(len(nodes) + 1, vocab), {})
    rows = constraint.masked(scores, text, Draft(torch.tensor(nodes), None, tree)).logits
    return [row.isfinite().nonzero().flatten().tolist() for row in rows]


class Remembers:
    """An automaton whose mask [5] tells all tokens that it has read."""

    def __init__(self):
        self.read = []

    def allowed(self):
        bits = sum((i + 2) * (token + 1) ** 2 for i, token in enumerate(self.read)) % 15 + 1
        return torch.tensor([*(bool(bits >> i & 1) for i in range(4)), False])

    def advance(self, token):
        self.read.append(token)
        return True

    def back(self, tokens):
        del self.read[len(self.read) - tokens :]


TREES = list(product(*(range(-1, node) for node in range(5))))


def test_each_row_has_the_mask_of_its_own_path_in_all_trees_of_five_nodes():
    rng, constraint = random.Random(2), Constraint(Remembers(), frozenset({4}))
    for parents in rng.sample(TREES, len(TREES)):
        text = [rng.randrange(4) for _ in range(4)]
        nodes = [rng.randrange(4) for _ in parents]
        paths = [text[1:]]
        for token, parent in zip(nodes, parents, strict=True):
            paths.append([*paths[parent + 1], token])
        assert masked(constraint, text, nodes, parents) == [mask_after(path) for path in paths]


def mask_after(output):
    automaton = Remembers()
    automaton.read = list(output)
    return automaton.allowed().nonzero().flatten().tolist()


def test_forced_tokens_and_mass_are_counted_for_emitted_tokens():
    constraint = FORKS.constraint(weighs=True)
    assert masked(constraint, [0], [1, 1]) == [[0, 1], [1], [0, 1]]
    constraint.count([0])  # 1 was kept, and the token after it is the target's own
    assert constraint.forced == 1
    assert constraint.removed_nats == pytest.approx(math.log(3 / 2) + math.log(3 / 1), abs=1e-6)
    assert constraint.made == 3


def test_a_dead_end_names_its_position():
    class Contradicts(TableAutomaton):
        """A token that the mask allows is refused when it is read."""

        def advance(self, token):
            return False

    constraint = Constraint(Contradicts(PAIRS), frozenset({2}))
    masked(constraint, [0], [0])
    constraint.count([])
    with pytest.raises(DeadEndError, match=r"after 1 tokens of output \(position 2\)"):
        constraint.count([0])
