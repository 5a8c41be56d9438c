"""Drafts in another vocabulary: the law that comes out, and what the draft model is fed."""

from dataclasses import dataclass, field
from itertools import accumulate

import pytest

from spsbench.audit.exact.cases import Case, warped
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import Pair, TableLM
from spsbench.loop.sampling import Warp
from spsbench.loop.types import (
    Purpose,
)
from spsbench.methods.drafters.cross_tokenizer import SharedTokensDrafter, StringDrafter
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.models.translation.translator import ByText, SameTokens
from spsbench.models.translation.vocabulary import Tokens, Vocabularies, Vocabulary
from tests.decoding import output, rounds_of
from tests.parts import ByHistory, ByLaw

OURS = ("a", "b", "ba")
THEIRS = ("b", "ab", "a", "bb")
SHARED = {0: 2, 1: 0}  # the target's id -> the draft's
WARPS = [{}, {"temperature": 0.0}, {"temperature": 1.5, "top_k": 2, "top_p": 0.7}]
PAIR, DRAFT = Pair(3, 4), Pair(4, 11, ("plain", "plain", "zeros"))


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
        return Tokens(ids, [lead + end for end in accumulate(len(words[i]) for i in ids)])

    return Vocabulary([word.encode() for word in words], cutter)


def both():
    return Vocabularies(vocabulary(OURS), vocabulary(THEIRS))


def in_theirs(prefix):
    return tuple(cut("".join(OURS[i] for i in prefix), THEIRS))


def restricted(warp):
    """Cells of DRAFT: the draft's law, in its own tokens, on those that both have; then warped."""

    def drawn(facts, slot):
        before = tuple(SHARED[facts.picked[Purpose.DRAFT, i]] for i in range(slot))
        row = DRAFT.p(in_theirs(facts.text) + before)
        weights = [row[SHARED[i]] if i in SHARED else 0.0 for i in range(len(OURS))]
        law = tuple(w / sum(weights) for w in weights)
        return list(warped(lambda prefix: law, **warp)(()))

    return drawn


def tables(case, text, target):
    if target:
        return TableLM(case.q, 3, limit=case.target_limit, text=text, target=True)
    return TableLM(DRAFT.p, 4)


def shared(lm):
    return SharedTokensDrafter(lm, ByText(both().target, both().draft), both().overlap.pairs, 3)


def strings(lm, sampled=False):
    return StringDrafter(lm, ByText(both().target, both().draft), sampled)


def proved(verifier, drafter, **fields):
    rule = DiscoveredRule(verifier, restricted(fields.get("warp", {})))
    given = {"drafter": drafter, "lm": tables, "prompt": (2, 0)} | fields
    proof = prove(Case(verifier, rule, PAIR.q, DRAFT.p, 3, **given))
    assert proof.constant, "a decision changed inside a cell"
    assert proof.mass == pytest.approx(1, abs=1e-12)
    assert proof.distance < 1e-12


@pytest.mark.parametrize("warp", WARPS, ids=str)
@pytest.mark.parametrize("rule", [Sps(), Block()], ids=lambda rule: type(rule).__name__)
def test_shared_tokens_have_the_targets_law(rule, warp):
    proved(rule, shared, warp=warp, tokens=3 if isinstance(rule, Sps) else 2)


@pytest.mark.parametrize("schedule", [ByHistory(), ByLaw()], ids=str)
def test_shared_tokens_under_other_schedules(schedule):
    proved(Sps(), shared, schedule=schedule, eos=frozenset({1}))


@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_strings_have_the_targets_law(warp):
    proved(Match(), strings, warp=warp)


def drawn_strings(facts, slot):
    before = tuple(facts.picked[Purpose.DRAFT, i] for i in range(slot))
    return list(DRAFT.p(in_theirs(facts.text) + before))


def test_drawn_strings_have_the_targets_law():
    case = Case(
        Match(),
        DiscoveredRule(Match(), drawn_strings),
        PAIR.q,
        DRAFT.p,
        3,
        tokens=2,
        schedule=Constant(1),
        drafter=lambda lm: strings(lm, sampled=True),
        prompt=(2, 0),
        lm=tables,
    )
    assert prove(case).exact


class Permuted(SharedTokensDrafter):
    """The law that is handed over has its columns in another order than they were drawn in."""

    def draft(self, *given):
        made = super().draft(*given)
        if made.probs is None:
            return made
        return type(made)(made.tokens, made.probs[:, [1, 0, 2]])


class Unrestricted(SharedTokensDrafter):
    """The law that is handed over is not rescaled: tokens the target lacks keep their weight."""

    def draft(self, *given):
        made = super().draft(*given)
        return made if made.probs is None else type(made)(made.tokens, made.probs * 0.6)


@pytest.mark.parametrize("wrong", [Permuted, Unrestricted], ids=lambda w: w.__name__)
def test_a_law_that_was_not_drawn_from_is_seen(wrong):
    def make(lm):
        return wrong(lm, ByText(both().target, both().draft), SHARED, 3)

    rule = DiscoveredRule(Sps(), restricted({}))
    case = Case(Sps(), rule, PAIR.q, DRAFT.p, 3, drafter=make, lm=tables, prompt=(2, 0))
    assert prove(case).distance > 0.01


@dataclass
class Recorder:
    """An `LM` over a table that keeps what it was fed."""

    inner: TableLM
    fed: int = 0
    read: list[tuple[int, ...]] = field(default_factory=list)

    vocab_size = 4
    limit: int | None = None

    @property
    def length(self):
        return self.inner.length

    def append(self, tokens, keep, parents=None):
        assert len(tokens) > 0 or keep == 0
        self.fed += len(tokens)
        scores = self.inner.append(tokens, keep, parents)
        if keep:
            self.read.append(tuple(self.inner._cache))
        return scores

    def commit(self, length, path=None):
        self.inner.commit(length, path)


class Sometimes(Constant):
    """Every third round drafts."""

    def k(self, history):
        return 2 if len(history) % 3 == 0 else 0


PROMPT = [2, 0, 1, 1, 0] * 4


def run(drafter, verifier, tokens=60, schedule=None):
    schedule = schedule or Constant(3)
    parts = {"verifier": verifier, "schedule": schedule, "warp": Warp(), "seed": 3}
    target = TableLM(Pair(3, 4, ("plain",)).q, 3)
    return output(rounds_of(target, drafter, tokens, prompt=PROMPT, **parts))


@pytest.mark.parametrize("kind", ["shared", "strings", "drawn strings"])
def test_the_cache_is_realigned_and_not_made_anew(kind):
    """The first law of each round follows the text in the draft's own tokens, and no others."""
    lm = Recorder(TableLM(DRAFT.p, 4))
    drafter = shared(lm) if kind == "shared" else strings(lm, sampled="drawn" in kind)
    inner, firsts = drafter.draft, []

    def watched(context, *given):
        before = len(lm.read)
        made = inner(context, *given)
        if len(lm.read) > before:
            firsts.append((lm.read[before], in_theirs(context.tokens)))
        return made

    drafter.draft = watched
    run(drafter, Sps() if kind == "shared" else Match())
    assert len(firsts) > 15
    assert all(cached == text for cached, text in firsts)
    assert lm.fed < len(in_theirs(PROMPT)) + 2.5 * len(lm.read)


def test_of_one_vocabulary_it_is_the_model_itself():
    def lm():
        return TableLM(PAIR.p, 3)

    same = SharedTokensDrafter(lm(), SameTokens(), {i: i for i in range(3)}, 3)
    assert run(same, Sps()) == run(ModelDrafter(lm()), Sps())
    assert len(run(StringDrafter(lm(), SameTokens()), Match())) == 60


@pytest.mark.parametrize("make", [shared, strings])
def test_a_round_without_a_draft_leaves_its_tokens_to_the_next(make):
    """Nothing was fed in it, so that nothing of it is in the cache."""
    lm = Recorder(TableLM(DRAFT.p, 4))
    run(make(lm), Sps() if make is shared else Match(), schedule=Sometimes(2))
    texts = {in_theirs(PROMPT)[:n] for n in range(9)}
    assert lm.read
    assert all(cached[:8] in texts for cached in lm.read)


@pytest.mark.parametrize("make", [shared, strings])
def test_beyond_the_drafts_context_the_target_goes_on_alone(make):
    lm = TableLM(DRAFT.p, 4, limit=30)
    assert len(run(make(lm), Sps() if make is shared else Match(), tokens=40)) == 40
    assert lm.length <= 30
