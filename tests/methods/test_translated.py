"""Drafts in another vocabulary: the output's distribution, and what the draft model is fed."""

from functools import partial
from itertools import accumulate

import pytest

from spsbench.audit.exact.cases import Case, warp_probs
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Purpose
from spsbench.methods.drafters.cross_tokenizer import SharedTokensDrafter, StringDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.models.translation.translator import ByText
from spsbench.models.translation.vocabulary import TokensOfText, Vocabularies, Vocabulary
from tests.decoding import output, rounds_of
from tests.parts import ByHistory, ByLaw
from tests.variants import first

OURS = ("a", "b", "ba")
THEIRS = ("b", "ab", "a", "bb")
SHARED = {0: 2, 1: 0}  # the target's id -> the draft's
WARPS = [{}, {"temperature": 0.0}, {"temperature": 1.5, "top_k": 2, "top_p": 0.7}]
PAIR, DRAFT = ToyPair(3, 4), ToyPair(4, 11, ("plain", "plain", "zeros"))


def cut(text, words):
    """By the longest word at each place."""
    ids = []
    while text:
        best = max((w for w in words if text.startswith(w)), key=len)
        ids.append(words.index(best))
        text = text[len(best) :]
    return ids


def vocabulary(words):
    def cutter(text):
        letters = "".join(letter for letter in text if letter in "ab")
        ids, lead = cut(letters, words), len(text) - len(letters)
        return TokensOfText(ids, [lead + end for end in accumulate(len(words[i]) for i in ids)])

    return Vocabulary([word.encode() for word in words], cutter)


def both():
    return Vocabularies(vocabulary(OURS), vocabulary(THEIRS))


def in_theirs(prefix):
    return tuple(cut("".join(OURS[i] for i in prefix), THEIRS))


def restricted(warp):
    """Cells of DRAFT: the draft's probs, in its tokens, on those that both have; then warped."""

    def drawn(facts, slot):
        before = tuple(SHARED[facts.picked[Purpose.DRAFT, i]] for i in range(slot))
        row = DRAFT.p(in_theirs(facts.text) + before)
        weights = [row[SHARED[i]] if i in SHARED else 0.0 for i in range(len(OURS))]
        law = tuple(w / sum(weights) for w in weights)
        return list(warp_probs(lambda prefix: law, **warp)(()))

    return drawn


def tables(case, text, target):
    if target:
        return TableLM(case.q, 3, limit=case.target_limit, text=text, target=True)
    return TableLM(DRAFT.p, 4)


def shared(lm):
    return SharedTokensDrafter(lm, ByText(both().target, both().draft), both().overlap.pairs, 3)


def strings(lm, sampled=False):
    return StringDrafter(lm, ByText(both().target, both().draft), sampled)


def proved(verifier, drafter, drawn=None, **fields):
    rule = DiscoveredRule(verifier, drawn or restricted(fields.get("warp", {})))
    given = {"drafter": drafter, "lm": tables, "prompt": (2, 0)} | fields
    proof = prove(Case(verifier, rule, PAIR.q, DRAFT.p, 3, **given))
    assert proof.constant, "a decision changed inside a cell"
    assert proof.mass == pytest.approx(1, abs=1e-12)
    assert proof.distance < 1e-12


@pytest.mark.parametrize("warp", WARPS, ids=str)
@pytest.mark.parametrize("rule", [Sps(), Block()], ids=lambda rule: type(rule).__name__)
def test_shared_tokens_have_the_targets_distribution(rule, warp):
    proved(rule, shared, warp=warp, tokens=3 if isinstance(rule, Sps) else 2)


@pytest.mark.parametrize("schedule", first(1, (ByLaw(), ByHistory())), ids=str)
def test_shared_tokens_under_other_schedules(schedule):
    proved(Sps(), shared, schedule=schedule, eos=frozenset({1}))


@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_strings_have_the_targets_distribution(warp):
    proved(Match(), strings, warp=warp)


def drawn_strings(facts, slot):
    before = tuple(facts.picked[Purpose.DRAFT, i] for i in range(slot))
    return list(DRAFT.p(in_theirs(facts.text) + before))


def test_drawn_strings_have_the_targets_distribution():
    drafter = partial(strings, sampled=True)
    proved(Match(), drafter, drawn_strings, tokens=2, schedule=Constant(1))


PROMPT = [2, 0, 1, 1, 0] * 4


def run(drafter, verifier, tokens=60, schedule=None):
    schedule = schedule or Constant(3)
    parts = {"verifier": verifier, "schedule": schedule, "warp": Warp(), "seed": 3}
    target = TableLM(ToyPair(3, 4, ("plain",)).q, 3)
    return output(rounds_of(target, drafter, tokens, prompt=PROMPT, **parts))


@pytest.mark.parametrize("make", [shared, strings])
def test_beyond_the_drafts_context_the_target_goes_on_alone(make):
    lm = TableLM(DRAFT.p, 4, limit=30)
    assert len(run(make(lm), Sps() if make is shared else Match(), tokens=40)) == 40
    assert lm.length <= 30
