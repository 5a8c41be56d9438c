"""The power of the proof: each known defect is planted and must be seen.

A defect is a patch or a small subclass of a shipping part. It runs through the same enumeration as
the correct parts, and the law that comes out must differ visibly from the target's. Defects of the
noise are ways to give two draws one address: their laws are exact, since a uniform that is used
twice is cut into cells twice. The control rows change nothing and must be proved exact.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spsbench.audit.exact import pairings, rules
from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import ArgmaxDrafter, FixedDrafter, sampled
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import InconsistentFeedError, Pair, TableLM
from spsbench.loop import decode as loop
from spsbench.loop import sampling
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Drawn, Limits, Noise, Purpose, Verdict
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.heads.network import known_ids
from spsbench.methods.schedules.by_distribution import Confidence
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.sps import Sps, chain_law, law_of
from tests.heads import writers
from tests.heads.stage import HeadSite
from tests.tiny_models import tiny
from tests.written_rules import MatchRule, case

PLAIN = Pair(2, 3, ("plain",))
WIDE = Pair(3, 2, ("plain",))
ZEROS = Pair(3, 4, ("plain", "zeros"))
TOP_K = {"top_k": 2}


class Altered:
    """A round's noise with the uniforms of one purpose changed."""

    def __init__(self, noise: Noise, purpose: Purpose, change: Callable[[Tensor], Tensor]) -> None:
        self.noise, self.purpose, self.change = noise, purpose, change

    def uniform(self, purpose, n):
        u = self.noise.uniform(purpose, n)
        return self.change(u) if purpose is self.purpose else u


@dataclass(frozen=True)
class AcceptsZero(Sps):
    """`u <= q / p`."""

    def __call__(self, draft, q, noise):
        low = torch.tensor(-1.0, dtype=torch.float64)
        return Sps()(draft, q, Altered(noise, Purpose.ACCEPT, lambda u: u.nextafter(low)))


@dataclass(frozen=True)
class Lenient(Sps):
    """Keeps x with probability min(1, q / (0.9 p))."""

    def __call__(self, draft, q, noise):
        return Sps()(draft, q, Altered(noise, Purpose.ACCEPT, lambda u: 0.9 * u))


@dataclass(frozen=True)
class RowBefore(Sps):
    """The last token comes from the row before its own."""

    def __call__(self, draft, q, noise):
        verdict = Sps()(draft, q, noise)
        a = int((verdict.path >= 0).sum())
        law = q[max(a - 1, 0)]
        if a < len(draft.tokens):
            law = sampling.residual(law, draft.probs[a])
        token = sampling.sample(law, noise.uniform(Purpose.FINAL, 1)[0])
        return verdict._replace(token=token)


@dataclass(frozen=True)
class StopsEarly(Block):
    """Ends at the first prefix that fails, though a longer one may pass."""

    def __call__(self, draft, q, noise):
        def alone(slot):
            mask = torch.arange(len(draft.tokens)) != slot
            only = Altered(noise, Purpose.ACCEPT, lambda u: u.masked_fill(mask, 1.0))
            return Block()(draft, q, only)

        verdict = alone(-1)
        for slot in range(len(draft.tokens)):
            longer = alone(slot)
            if int((longer.path >= 0).sum()) != slot + 1:
                break
            verdict = longer
        return verdict


@dataclass(frozen=True)
class UncutWeight(Block):
    """A prefix may weigh more than 1, and makes up for what a later token lacks."""

    def __call__(self, draft, q, noise):
        def uncut(ratio):
            return torch.cat([ratio.new_ones(1), ratio.cumprod(0)])

        with patch("spsbench.methods.verifiers.block.prefix_weights", uncut):
            return Block()(draft, q, noise)


@dataclass(frozen=True)
class NextResidual(Sps):
    """What is left of q at a slot is less the draft's law of the slot after it."""

    def __call__(self, draft, q, noise):
        n = len(draft.tokens)
        with patch(SPS + "chain_law", lambda draft, a: chain_law(draft, min(a + 1, n))):
            return Sps()(draft, q, noise)


@dataclass(frozen=True)
class LastTestDrawsToo(Sps):
    """The uniform of the last test draws the last token as well."""

    def __call__(self, draft, q, noise):
        def again(u):
            return noise.uniform(Purpose.ACCEPT, n)[-1:] if n else u

        n = len(draft.tokens)
        return Sps()(draft, q, Altered(noise, Purpose.FINAL, again))


@dataclass(frozen=True)
class SharedDraw(Match):
    """The target's token after a whole draft is drawn with the uniform of the row before."""

    def __call__(self, draft, q, noise):
        def again(u):
            return torch.cat([u[:-1], u[-2:-1]]) if len(u) > 1 else u

        return Match()(draft, q, Altered(noise, Purpose.PLAIN, again))


@dataclass(frozen=True)
class Redraws(Match):
    """Compares with a token of the target's own, and draws another when they differ."""

    def __call__(self, draft, q, noise):
        verdict = Match()(draft, q, noise)
        a = int((verdict.path >= 0).sum())
        if a == len(draft.tokens):
            return verdict
        return verdict._replace(token=sampling.sample(q[a], noise.uniform(Purpose.FINAL, 1)[0]))


class RedrawsRule(MatchRule):
    def final(self, facts):
        a = 0
        while facts.picked[Purpose.PLAIN, a] == facts.draft_tokens[a]:
            a += 1
        return list(facts.q(facts.after(a)))


@dataclass(frozen=True)
class DrawsPerPath(Match):
    """Draws the target's token once for each path from the root (of a tree of depth one)."""

    def __call__(self, draft, q, noise):
        n = len(draft.tokens)
        path = torch.full((n,), -1)
        u = noise.uniform(Purpose.PLAIN, n + 1)
        own = sampling.sample(q[:1].expand(n, -1), u[:n])
        for node in range(n):
            if own[node] == draft.tokens[node]:
                path[0] = node
                return Verdict(path, sampling.sample(q[node + 1], u[n]), torch.tensor(-1))
        return Verdict(path, own[0] if n else sampling.sample(q[0], u[0]), torch.tensor(-1))


class DrawsPerPathRule(MatchRule):
    def plain(self, facts, slot):
        tokens = facts.draft_tokens
        if slot < len(tokens) or not tokens:
            return list(facts.q(facts.text))
        met = [t for i, t in enumerate(tokens) if facts.picked[Purpose.PLAIN, i] == t]
        return list(facts.q((*facts.text, met[0]))) if met else [1.0]


class UnwarpedLaws(ModelDrafter):
    """Draws from the warped law and hands over the raw one."""

    def draft(self, context, *rest):
        raw = []

        def warp(logits):
            raw.append(Warp()(logits)[0])
            return context.warp(logits)

        draft = super().draft(context._replace(warp=warp), *rest)
        return replace(draft, probs=torch.stack(raw)) if len(draft.tokens) else draft


class DropsWeak(ModelDrafter):
    """Sees that the last token is a weak one, and drops it."""

    def draft(self, *args):
        draft = super().draft(*args)
        n = len(draft.tokens)
        if n and draft.probs[-1, draft.tokens[-1]] < 0.5:
            return Draft(draft.tokens[:-1], draft.probs[:-1])
        return draft


class ShowsTheToken(ModelDrafter):
    """Draws a token, and then asks the schedule with no other token's probability to see."""

    keeps: ClassVar[bool] = False  # the token that the schedule found too weak

    def draft(self, context, k, noise, go_on):
        draft = super().draft(context, k, noise, Constant().go_on)
        for i, token in enumerate(draft.tokens):
            seen = torch.zeros_like(draft.probs[i]).index_fill(0, token[None], 1.0)
            if not go_on(seen * draft.probs[i]):
                n = i + 1 if self.keeps else i
                return Draft(draft.tokens[:n], draft.probs[:n] if n else None)
        return draft


class KeepsWhatItShows(ShowsTheToken):
    """The same, but what was drawn is verified, and the draft ends behind it."""

    keeps = True


class ChoosesLengthLate(ModelDrafter):
    """Draws K tokens, and hands over one or all of them: as the first token's value says."""

    def draft(self, *args):
        draft = super().draft(*args)
        n = len(draft.tokens) if len(draft.tokens) and draft.tokens[0] == 0 else 0
        return Draft(draft.tokens[:n], draft.probs[:n] if n else None)


class SoftArgmax(ArgmaxDrafter):
    """Proposes the likeliest tokens as if they had been drawn from the law."""

    drawn = Drawn.IID

    def draft(self, context, *rest):
        draft = super().draft(context, *rest)
        if not len(draft.tokens):
            return draft
        text = (*context.tokens, *draft.tokens.tolist())
        n = len(text) - len(draft.tokens)
        rows = [WIDE.p(text[: n + i]) for i in range(len(draft.tokens))]
        return replace(draft, probs=torch.tensor(rows, dtype=torch.float64))


class StaleLM(TableLM):
    """Says that its cache was cut back, and keeps what was rejected."""

    def commit(self, length, path=None):
        if length == 0:
            super().commit(0)


def unwarped_bonus(logits):
    laws = Warp(**TOP_K)(logits)
    return torch.cat([laws[:-1], Warp()(logits[-1:])]) if len(laws) > 1 else laws


def likeliest(law, u):
    return law.argmax(-1)


def looks_at_the_last_only(block, output, limits, *rest):
    if block[-1] in limits.eos:
        return block, "eos"
    return CUT(block, output, Limits(limits.max_new_tokens), *rest)


def never_over(block, output, limits, budget, stop):
    return (block, "length") if len(output) + len(block) >= budget else (block, None)


SPS = "spsbench.methods.verifiers.sps."
CUT = loop.cut
RESIDUAL = sampling.residual


@dataclass
class Defect:
    """What is planted: patches of names, or parts of another make in the case."""

    case: Case
    patches: dict[str, object] = field(default_factory=dict)


def by_position(index, length, purpose, slot):
    return purpose, length + slot


def sps(pair=PLAIN, **fields):
    return case("sps", fields.pop("verifier", Sps()), pair, **fields)


def block(pair=PLAIN, **fields):
    return case("block", fields.pop("verifier", Block()), pair, **fields)


def match(pair=PLAIN, **fields):
    return case("match", fields.pop("verifier", Match()), pair, **fields)


def tree(verifier):
    parts = {"verifier": verifier, "schedule": Constant(1), "tokens": 2}
    return match(WIDE, drafter=lambda lm: FixedDrafter((0, 1), (-1, -1)), **parts)


def stale(case, text, target):
    return (StaleLM if target else TableLM)(case.q if target else case.p, case.vocab)


DEFECTS = {
    "the recovered token is drawn from q": Defect(sps(), {SPS + "residual": lambda q, p: q}),
    "the recovered token is drawn from |q - p|": Defect(
        sps(WIDE), {SPS + "residual": lambda q, p: q if p is None else (q - p).abs()}
    ),
    "p is raw, but the tokens are drawn from its top k": Defect(
        sps(WIDE, warp=TOP_K, drafter=UnwarpedLaws)
    ),
    "one uniform for all slots": Defect(
        sps(address=lambda i, n, purpose, slot: (i, purpose)),
    ),
    "noise keyed by position": Defect(block(address=by_position, tokens=4)),
    "the draft's uniforms are used again for acceptance": Defect(
        sps(address=lambda i, n, purpose, slot: (i, min(purpose + 1, 2), slot))
    ),
    "the draft's first uniform draws the last token too": Defect(
        sps(address=lambda i, n, purpose, slot: (i, purpose % 2, slot))
    ),
    "one uniform for the whole prompt": Defect(sps(address=lambda *_: 0)),
    "the same noise in every round": Defect(
        match(address=lambda i, n, purpose, slot: (purpose, slot))
    ),
    "a token is dropped after its value was seen": Defect(sps(WIDE, drafter=DropsWeak)),
    "a schedule looks at the drawn token": Defect(
        sps(drafter=ShowsTheToken, schedule=Confidence(0.5, most=2))
    ),
    "the same with block verification": Defect(
        block(drafter=ShowsTheToken, schedule=Confidence(0.5, most=2))
    ),
    "the length is chosen after the draw": Defect(sps(WIDE, drafter=ChoosesLengthLate)),
    "the bonus token is not warped": Defect(sps(WIDE, warp=TOP_K, package_warp=unwarped_bonus)),
    "the last token comes from the row before": Defect(sps(verifier=RowBefore())),
    "u <= q / p": Defect(sps(ZEROS, verifier=AcceptsZero())),
    "greedy: soft laws and the argmax of the residual": Defect(
        sps(WIDE, warp={"temperature": 0.0}, package_warp=Warp()),
        {
            "spsbench.methods.drafters.model.sample": likeliest,
            "spsbench.methods.verifiers.sps.sample": likeliest,
        },
    ),
    "an argmax draft is declared as drawn from p": Defect(sps(WIDE, drafter=SoftArgmax)),
    "match draws again on a mismatch": Defect(
        replace(match(verifier=Redraws(), drafter=ArgmaxDrafter), rule=RedrawsRule())
    ),
    "match draws once for each path": Defect(
        replace(tree(DrawsPerPath()), rule=DrawsPerPathRule())
    ),
    "block verification ends at the first failure": Defect(block(verifier=StopsEarly())),
    "block verification with the token-wise residual": Defect(
        block(WIDE),
        {"spsbench.methods.verifiers.block.residual": lambda q, p: RESIDUAL(q / q.sum(-1), p)},
    ),
    "an EOS inside a block is passed over": Defect(
        sps(WIDE, eos=frozenset({1})), {"spsbench.loop.decode.cut": looks_at_the_last_only}
    ),
    "the budget is not clamped": Defect(
        sps(), {"spsbench.loop.decode.room": lambda *_: 5, "spsbench.loop.decode.cut": never_over}
    ),
    "lenience 0.9": Defect(sps(verifier=Lenient())),
    "the cache keeps what was rejected": Defect(sps(lm=stale)),
}

CONTROLS = {
    "sps": sps(),
    "sps with zeros": sps(ZEROS),
    "sps with top k": sps(WIDE, warp=TOP_K),
    "greedy sps": sps(WIDE, warp={"temperature": 0.0}),
    "sps with an EOS": sps(WIDE, eos=frozenset({1})),
    "block": block(tokens=4),
    "a schedule looks at the law": sps(schedule=Confidence(0.6, most=2)),
    "a schedule looks at a token that is kept": sps(
        drafter=KeepsWhatItShows, schedule=Confidence(0.5, most=2)
    ),
    "match": match(drafter=ArgmaxDrafter),
    "match on a tree": tree(Match()),
    "an unchecked cache": sps(
        lm=lambda case, text, target: TableLM(case.q if target else case.p, 2)
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_seen(name):
    defect = DEFECTS[name]
    with ExitStack() as planted:
        for target, replacement in defect.patches.items():
            planted.enter_context(patch(target, replacement))
        proof = prove(defect.case)
    assert not proof.exact
    assert proof.distance > 1e-3


slow = pytest.mark.slow  # rules that are seen above already
WRONG_RULES = (
    *(pytest.param(rule, marks=slow) for rule in (Lenient(), RowBefore(), StopsEarly())),
    UncutWeight(),
    NextResidual(),
    LastTestDrawsToo(),
    SharedDraw(),
)


@pytest.mark.parametrize("rule", WRONG_RULES, ids=str)
def test_a_wrong_rule_is_seen_by_what_is_walked_unasked(rule):
    """`sps verify rules` finds it with the draft model's chains.

    Not `u <= q / p`: its law is wrong by the chance of u = 0 alone.
    """
    kind = next(kind for kind in pairings.drafter_kinds() if kind.name == "model")
    with patch.object(rules, "smallest", lambda make: []):
        found = rules.pairing("mine", rule, kind, "constant", lambda: Constant(2))
    assert found.verdict == "BIASED"
    assert (found.distance or 0) > 1e-3


def cut_by_value(draft, nodes):
    """The tree of siblings cut to those of the greatest ids."""
    if draft.parents is None or nodes is None or len(draft.tokens) <= nodes:
        return draft
    kept = draft.tokens.argsort(descending=True, stable=True)[:nodes].sort().values
    return replace(
        draft, tokens=draft.tokens[kept], probs=draft.probs[kept], parents=draft.parents[kept]
    )


@pytest.mark.parametrize("drawn", [Drawn.IID, Drawn.DISTINCT])
def test_a_tree_that_is_cut_by_what_was_drawn_is_seen(drawn):
    kind = sampled("", (-1, -1, -1), drawn)
    fields = {"schedule": Constant(1), "tokens": 2, "prompt": (0, 1), "target_limit": 4}
    cells = DiscoveredRule(Recursive(), kind.drawn)
    cut = Case(Recursive(), cells, WIDE.q, WIDE.p, 3, drafter=kind.make, **fields)
    assert prove(cut).exact
    with patch.object(Draft, "within", cut_by_value):
        assert prove(cut).distance > 1e-3


@pytest.mark.parametrize("name", CONTROLS)
def test_without_a_defect_the_same_harness_proves_the_law(name):
    assert prove(CONTROLS[name]).exact


def test_chains_on_a_device_have_the_law_too_and_a_defect_there_is_seen():
    """No value is on the host there, so that every decision is made by tensors."""
    with patch("spsbench.methods.verifiers.sps.on_host", lambda values: None):
        assert prove(sps(WIDE)).exact
        assert prove(sps(ZEROS)).exact
        following = "spsbench.methods.verifiers.sps.law_of"
        with patch(following, lambda draft, a: law_of(draft, (a + 1).clamp(max=len(draft.tokens)))):
            assert prove(sps(WIDE)).distance > 1e-3


def absolute(shape, tensors, vocab):
    """`known_ids` that takes offsets for tokens where no `t2d` contradicts."""
    ids, rest = known_ids(shape, tensors, vocab)
    return (tensors["d2t"].long() if "t2d" not in tensors else ids), rest


def backwards(shape, tensors, vocab):
    """`known_ids` that subtracts offsets where no `t2d` contradicts."""
    ids, rest = known_ids(shape, tensors, vocab)
    rows = torch.arange(len(tensors["d2t"]))
    return (rows - tensors["d2t"].long() if "t2d" not in tensors else ids), rest


def tokens_of_a_head_without_t2d(folder, write):
    """The target's tokens that a head drafts, as it is read, and as its writer chose them."""
    target = tiny("llama", vocab=20, num_hidden_layers=8, dtype=torch.float32)
    head = write(folder, target)
    tensors = load_file(head / "model.safetensors")
    chosen = tensors.pop("t2d").nonzero()[:, 0]
    save_file(tensors, head / "model.safetensors")
    return HeadSite(head, target).drafter()._frontier.network.ids, chosen


HEADS = {"EAGLE-3": writers.eagle3, "speculators": writers.speculators}


@pytest.mark.parametrize("kind", HEADS)
def test_offsets_are_read_where_a_head_has_no_t2d(kind, tmp_path):
    found, chosen = tokens_of_a_head_without_t2d(tmp_path, HEADS[kind])
    assert torch.equal(found, chosen)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("misread", [absolute, backwards])
def test_offsets_that_are_misread_are_seen(misread, kind, tmp_path):
    with patch("spsbench.methods.heads.network.known_ids", misread):
        found, chosen = tokens_of_a_head_without_t2d(tmp_path, HEADS[kind])
    assert not torch.equal(found, chosen)


def test_the_tables_refuse_a_cache_that_keeps_what_was_rejected():
    def checked(case, text, target):
        kind = StaleLM if target else TableLM
        return kind(case.q if target else case.p, case.vocab, text=text, target=target)

    with pytest.raises(InconsistentFeedError):
        prove(sps(lm=checked))
