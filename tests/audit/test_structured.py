"""Texts under a grammar: the law that comes out, and planted defects that the enumeration sees."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from spsbench.audit.exact.cases import warped
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import TreeDrawn, sampled
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.pairings import STAND_INS, kind_of, pairings
from spsbench.audit.exact.tables import Pair, TableLM, normalised
from spsbench.errors import SpsError
from spsbench.loop.constraint import Constraint, DeadEndError, MaskedLM
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Drawn, Guarantee
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.plugins import make
from spsbench.settings.cell import CONSTANT
from spsbench.spec import Spec
from tests.automata import BRANCHES, FORKS, PAIRS, STRUCTURED, TableAutomaton, case_of

LONG_PROMPT = (0, 1, 0, 1, 0)  # n-grams find a match


def drafter_under_grammar(kind):
    """A drafter over a masked table; None where tables cannot serve it."""
    lm = MaskedLM(TableLM(Pair(2, 3, ("plain",)).p, FORKS.vocab), FORKS.constraint(1))
    try:
        drafter = kind.make(lm)
    except (SpsError, ValueError, TypeError, AttributeError):
        return None
    return None if drafter.layers else drafter


def proofs_under_grammars(verifier, kind):
    """Yield the proofs of all cases; drafters with rounds of their own have one round of K = 2."""
    least = min((one.pair.vocab for one in kind.rounds), default=0)
    for _, table, pair, options in STRUCTURED:
        fields = options | ({"tokens": 3, "one_round": True} if least else {})
        greedy = fields.get("warp") == {"temperature": 0.0}
        if pair.vocab >= least and (greedy or verifier.guarantee is not Guarantee.GREEDY):
            fields |= {"prompt": LONG_PROMPT, "drafter": kind.make}
            yield prove(case_of(table, pair, verifier, kind.drawn, **fields))


@pytest.mark.parametrize(
    ("verifier", "drafter"),
    [
        ("sps", "model"),
        ("match", "grammar"),
        ("traversal", "(distinct siblings)"),
        ("sps", "hybrid:first=grammar,then=model,least=1"),
    ],
)
def test_rules_are_exact_under_grammars(verifier, drafter):
    kind = STAND_INS.get(drafter) or kind_of(Spec.parse(drafter))
    proofs = list(proofs_under_grammars(make("verifiers", Spec(verifier)), kind))
    assert all(proof.exact and proof.distance < 1e-12 for proof in proofs)
    assert sum(proof.paths for proof in proofs) > 8


@pytest.mark.slow
@pytest.mark.timeout(900)  # 2 minutes of a core
def test_every_rule_is_exact_under_grammars():
    checked = set()
    for pairing in pairings():
        kind = STAND_INS.get(pairing.drafter) or kind_of(Spec.parse(pairing.drafter))
        verifier = make("verifiers", pairing.verifier)
        drafter = drafter_under_grammar(kind)
        allowed = drafter and verifier.refuses(drafter.drawn, drafter.tree) is None
        if allowed and pairing.schedule == CONSTANT and verifier.guarantee is not Guarantee.LOSSY:
            checked.add(pairing)
            assert all(proof.exact for proof in proofs_under_grammars(verifier, kind)), pairing
    assert len(checked) > 40


def test_temperature_and_mask_commute():
    """The law of a temperature and a mask is written down in the other order."""
    pair = Pair(3, 6, ("plain",))
    case = case_of(FORKS, pair, warp={"temperature": 1.5})
    hand = replace(case, q=FORKS.constrained(warped(pair.q, temperature=1.5), 2), warp={})
    expected, other = case.expected(), hand.expected()
    assert all(expected[text] == pytest.approx(other[text], abs=1e-14) for text in expected)
    assert prove(case).exact


def test_a_raw_draft_law_is_exact_if_it_is_reported():
    """p need not be masked: tokens that the grammar refuses are then drafted and rejected."""

    def raw_draft(lm, constraint, target):
        return MaskedLM(lm, constraint, target=target) if target else lm

    for table in (PAIRS, FORKS):
        assert prove(case_of(table, Pair(3, 2, ("plain",)), masked=raw_draft, raw=True)).exact


# Defects that the enumeration must see: each is a wrapper of a session, an automaton or a drafter.


def planted(session):
    return {"masked": lambda lm, constraint, target: session(lm, constraint, target=target)}


class RowBefore(MaskedLM):
    """Each row has the mask of the row before it."""

    def _paths(self, tokens, parents):
        paths = super()._paths(tokens, parents)
        return [paths[0], *paths[:-1]] if paths else paths


class BonusUnmasked(MaskedLM):
    """The last row has no mask."""

    def _masked(self, logits, rows):
        made = super()._masked(logits, rows)
        return torch.cat([made[:-1], logits[-1:]]) if self._target and len(rows) > 1 else made


class SiblingsMask(MaskedLM):
    """A node has the mask of the node that was drafted before it."""

    def _paths(self, tokens, parents):
        paths = super()._paths(tokens, parents)
        return paths if parents is None else [*paths[:2], *paths[1:-1]]


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


def with_automaton(kind):
    def masked(lm, constraint, target):
        # both sessions share one constraint: its automaton is replaced once
        if not isinstance(constraint._automaton, kind):
            constraint._automaton = kind(constraint._automaton._table)
        return MaskedLM(lm, constraint, target=target)

    return {"masked": masked}


class ReportsMasked(ModelDrafter):
    """Draws from the raw law, and reports the masked one."""

    def draft(self, context, k, noise, go_on):
        raw, masked = self.lm._lm, self.lm
        self._frontier.lm = raw
        raw.commit(min(raw.length, len(context.tokens) - 1))
        made = super().draft(context, k, noise, go_on)
        self._frontier.lm = masked
        laws = []
        output = tuple(context.tokens[masked.constraint.start :])
        for slot, token in enumerate(made.tokens.tolist()):
            mask = masked.constraint.mask(output)
            row = made.probs[slot].where(mask, 0.0) if mask is not None else made.probs[slot]
            laws.append(row / row.sum())
            output += (token,)
        return Draft(made.tokens, torch.stack(laws) if laws else None)


class CutsBeforeRefused(ModelDrafter):
    """Draws from the raw law, and cuts the draft before the first token that is refused."""

    def draft(self, context, k, noise, go_on):
        made = super().draft(context, k, noise, go_on)
        constraint = self.constraint
        output = tuple(context.tokens[constraint.start :])
        for slot, token in enumerate(made.tokens.tolist()):
            mask = constraint.mask(output)
            if mask is None or not mask[token]:
                return Draft(made.tokens[:slot], made.probs[:slot] if slot else None)
            output += (token,)
        return made


def wrong(case):
    """Whether the enumeration sees a wrong law, decisions in wrong places, or an error."""
    try:
        proof = prove(case)
    except (DeadEndError, ZeroDivisionError, ArithmeticError, RuntimeError, ValueError):
        return True
    return not proof.whole or proof.distance > 1e-3


DEFECTS = {
    "mask of the row before": planted(RowBefore),
    "not rolled back": with_automaton(Stuck),
    "bonus unmasked": planted(BonusUnmasked),
    "EOS too early": with_automaton(Ends),
    "p raw, reported masked": {"drafter": ReportsMasked},
}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("table", [PAIRS, FORKS], ids=["pairs", "forks"])
def test_planted_defects_of_chains_are_seen(table, defect):
    fields = DEFECTS[defect]
    assert prove(case_of(table, Pair(3, 4, ("plain",)))).exact
    assert wrong(case_of(table, Pair(3, 4, ("plain",)), raw="drafter" in fields, **fields))


def test_a_draft_cut_before_a_refused_token_is_seen():
    """Invariant 4: whether a slot is verified would depend on the value that was drawn for it."""
    kept = []

    def masked(lm, constraint, target):
        kept[:] = [constraint]
        return MaskedLM(lm, constraint, target=target) if target else lm

    def drafter(lm):
        made = CutsBeforeRefused(lm)
        made.constraint = kept[0]
        return made

    raw = case_of(FORKS, Pair(3, 4, ("plain",)), tokens=2, masked=masked, raw=True)
    assert prove(raw).exact
    biased = prove(replace(raw, drafter=drafter))
    assert biased.distance > 0.01
    blind = replace(raw, verifier=Match(), rule=DiscoveredRule(Match()), drafter=drafter)
    assert prove(blind).exact  # one-sample match never looks at p


def test_a_mask_after_top_p_is_seen():
    class MasksLate:
        """The cut is made before the mask, and the rest is not renormalised."""

        def __init__(self, lm, constraint, *, target):
            self._masked, self._lm, self._warp = None, lm, Warp(top_p=0.6)
            self.vocab_size, self.limit, self.constraint = lm.vocab_size, lm.limit, constraint
            self._inner = MaskedLM(lm, constraint, target=target)

        length = property(lambda self: self._inner.length)

        def commit(self, length, path=None):
            self._inner.commit(length, path)

        def append(self, tokens, keep, parents=None):
            raw = []
            inner_append = self._lm.append

            def append(*given):
                raw.append(inner_append(*given))
                return raw[-1]

            self._lm.append = append
            try:
                scores = self._inner.append(tokens, keep, parents)
            finally:
                del self._lm.append
            if keep == 0:
                return scores
            cut = self._warp(raw[-1].logits)
            return scores._replace(logits=cut.log().where(scores.logits > -torch.inf, -torch.inf))

    warp = {"warp": {"top_p": 0.6}}
    for pair in (Pair(4, 3, ("plain",)), Pair(4, 8, ("plain",))):
        case = case_of(BRANCHES, pair, tokens=2, **warp)
        assert prove(case).exact
        late = case_of(BRANCHES, pair, tokens=2, **warp, **planted(MasksLate))
        assert wrong(replace(late, package_warp=torch.exp))


def test_a_siblings_mask_is_seen():
    parents = (-1, -1)
    kind = sampled("siblings", parents, Drawn.DISTINCT)
    fields = {
        "drafter": kind.make,
        "drawn": TreeDrawn(parents, Drawn.DISTINCT),
        "one_round": True,
        "schedule": Constant(2),
    }
    case = case_of(BRANCHES, Pair(4, 3, ("plain",)), Traversal(), **fields)
    assert prove(case).exact
    fields |= planted(SiblingsMask)
    assert wrong(case_of(BRANCHES, Pair(4, 3, ("plain",)), Traversal(), **fields))


# The wrapper and the masks themselves.


def session(table=PAIRS, target=True, start=2):
    constraint = table.constraint(start)
    law = normalised([1.0, 2.0, 3.0])
    return MaskedLM(TableLM(lambda text: law, 3), constraint, target=target), constraint


def allowed(scores):
    return [[i for i, x in enumerate(row) if x > -torch.inf] for row in scores.logits.tolist()]


def test_each_row_has_the_mask_of_its_own_path():
    lm, constraint = session()
    lm.append(torch.tensor([0]), keep=0)
    tree = torch.tensor([-1, -1, 0])
    scores = lm.append(torch.tensor([1, 0, 1, 1]), keep=4, parents=tree)
    # after the prompt 0 is forced; 0 leads to {0, 1}; 1 is refused; 0 1 leads back to the start
    assert allowed(scores) == [[0, 2], [0, 1], [0, 1], [0, 2]]
    lm.commit(2, [0, 2])
    assert constraint.text == [0, 1, 0, 1]
    assert constraint.forced == 0


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

    def end(self):
        return None


TREES = list(product(*(range(-1, node) for node in range(5))))


def test_rows_have_the_masks_of_their_paths_in_all_trees_of_five_nodes_and_after_their_commits():
    rng, law = random.Random(2), (0.2,) * 5
    constraint = Constraint(Remembers(), frozenset({4}), 1)
    target = MaskedLM(TableLM(lambda text: law, 5), constraint, target=True)
    draft = MaskedLM(TableLM(lambda text: law, 5), constraint)
    for parents in rng.sample(TREES, len(TREES)):
        text = [rng.randrange(4) for _ in range(4)]
        nodes = [rng.randrange(4) for _ in parents]
        paths = []
        for token, parent in zip(nodes, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        last = rng.randrange(5)
        branch, node = [], last
        while node >= 0:
            branch, node = [node, *branch], parents[node]
        for lm, part in (draft, rng.randrange(1, 5)), (target, 5):  # drafts grow in two passes
            lm.commit(0)
            fed, tree = torch.tensor([*text, *nodes[:part]]), torch.tensor(parents)
            rows = allowed(lm.append(fed, part + 1, tree[:part]))
            if part < 5:
                rows += allowed(lm.append(torch.tensor(nodes[part:]), 5 - part, tree))
            assert rows == [mask_after([*text[1:], *path]) for path in [[], *paths]]
            lm.commit(4, branch)
            rows = allowed(lm.append(torch.tensor([3, 2]), 2, torch.tensor([-1])))
            kept = [*text[1:], *paths[last], 3]
            assert rows == [mask_after(kept), mask_after([*kept, 2])]


def mask_after(output):
    automaton = Remembers()
    automaton.read = list(output)
    return automaton.allowed().nonzero().flatten().tolist()


def test_forced_tokens_and_mass_are_counted_for_emitted_tokens():
    table = FORKS
    constraint = Constraint(TableAutomaton(table), frozenset({2}), 1, weighs=True)
    law = normalised([1.0, 2.0, 3.0])
    lm = MaskedLM(TableLM(lambda text: law, 3), constraint, target=True)
    lm.append(torch.tensor([], dtype=torch.int64), keep=0)
    lm.append(torch.tensor([0, 1, 1]), keep=3)  # states 0, 2 and 0 again
    lm.commit(2)  # 1 was kept, and the token after it is the target's own
    assert constraint.forced == 1
    left = -(torch.tensor(3 / 6).log() + torch.tensor(2 / 6).log())
    assert constraint.removed_nats == pytest.approx(float(left), abs=1e-6)
    assert constraint.made == 3


def test_masks_are_made_once_and_dropped_when_the_text_has_passed():
    lm, constraint = session(start=1)
    lm.append(torch.tensor([0]), keep=1)
    lm.commit(1)
    for _ in range(3):
        assert constraint.only(()) is None
    assert constraint.made == 1
    lm.append(torch.tensor([0]), keep=1)
    lm.commit(2)
    assert () not in constraint._masks


def test_a_dead_end_names_its_position():
    class Contradicts(TableAutomaton):
        """A token that the mask allows is refused when it is read."""

        def advance(self, token):
            return False

    constraint = Constraint(Contradicts(PAIRS), frozenset({2}), 1)
    lm = MaskedLM(TableLM(lambda text: (0.2, 0.3, 0.5), 3), constraint, target=True)
    lm.append(torch.tensor([0]), keep=1)
    lm.commit(1)
    lm.append(torch.tensor([0]), keep=1)
    with pytest.raises(DeadEndError, match=r"after 1 tokens of output \(position 2\)"):
        lm.commit(2)
