"""The loop: how a generation ends, what is counted, what is in the caches, what is refused."""

import random

import numpy
import pytest
import torch

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.loop.decode import NonFiniteError, PairingError, decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Drawn, Limits
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.parts import ends_with

PAIR = ToyPair(4, 8, ("plain",))


def session(q=PAIR.q, limit=None):
    return TableLM(q, PAIR.vocab, limit=limit)


def run(prompt=(0, 1), tokens=12, k=3, eos=(), seed=0, drafter=None, verifier=None, **parts):
    settings = {
        "target": session(),
        "drafter": drafter or ModelDrafter(session(PAIR.p)),
        "verifier": verifier or Sps(),
        "schedule": Constant(k),
        "warp": Warp(),
        "noise": PhiloxStream(seed),
        "limits": Limits(tokens, frozenset(eos)),
        **parts,
    }
    return list(decode(prompt, **settings))


def output(rounds):
    return [token for turn in rounds for token in turn.tokens]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 13])
def test_the_budget_is_met_exactly(tokens, k):
    for seed in range(3):
        rounds = run(tokens=tokens, k=k, seed=seed)
        assert len(output(rounds)) == tokens
        assert [turn.finish for turn in rounds] == [None] * (len(rounds) - 1) + ["length"]
        assert all(len(turn.tokens) == turn.accepted + 1 for turn in rounds)  # room: none is cut


def test_no_token_to_make_is_no_round():
    target = session()
    assert run(tokens=0, target=target) == []
    assert run(prompt=(0, 1, 2), target=session(limit=3)) == []
    assert target.length == 0


@pytest.mark.parametrize("prompt", [(), (0,) * 6, (0.0, 1.0)])
def test_prompts_that_cannot_be_continued(prompt):
    with pytest.raises(ValueError):
        run(prompt=prompt, target=session(limit=5))
    with pytest.raises(ValueError):
        Limits(-1)


def test_any_of_several_eos_ids_ends_the_output_and_is_its_last_token():
    ended = set()
    for seed in range(20):
        rounds = run(eos=(1, 3), seed=seed, tokens=60)
        assert rounds[-1].finish == "eos"
        assert output(rounds)[-1] in (1, 3)
        assert not {1, 3} & set(output(rounds)[:-1])
        ended.add(output(rounds)[-1])
    assert ended == {1, 3}


def test_a_cut_changes_the_tokens_of_a_round_and_none_of_its_counts():
    """The same noise with and without the ending: the last round is the same but for its tokens."""
    cuts = 0
    for seed in range(12):
        free = run(seed=seed, tokens=60)
        for parts in {"eos": (2,)}, {"stop": ends_with((2, 0), (3,))}:
            rounds = run(seed=seed, tokens=60, **parts)
            whole = free[len(rounds) - 1]
            assert rounds[-1][:3] == whole[:3]
            assert rounds[-1].overlap == whole.overlap
            assert rounds[-1].tokens == whole.tokens[: len(rounds[-1].tokens)]
            assert rounds[-1].finish in ("eos", "stop")
            cuts += len(rounds[-1].tokens) < len(whole.tokens)
    assert cuts > 5


def test_eos_goes_before_stop_and_stop_before_length():
    first = output(run(tokens=3))
    ending = {"tokens": 3, "stop": ends_with(tuple(first))}
    assert run(**ending)[-1].finish == "stop"
    if first[2] not in first[:2]:
        assert run(**ending, eos=first[2:])[-1].finish == "eos"
    assert run(tokens=3)[-1].finish == "length"


@pytest.mark.parametrize("limit", [3, 4, 7, 10])
def test_the_target_s_context_ends_a_generation(limit):
    rounds = run(tokens=30, target=session(limit=limit))
    assert len(output(rounds)) == limit - 2
    assert rounds[-1].finish == "context"
    assert run(tokens=limit - 2, target=session(limit=limit))[-1].finish == "length"


@pytest.mark.parametrize("limit", [1, 2, 5, 8])
def test_beyond_the_drafter_s_context_the_target_goes_on_alone(limit):
    rounds = run(tokens=12, drafter=ModelDrafter(session(PAIR.p, limit)))
    assert len(output(rounds)) == 12
    length = 2
    for turn in rounds:
        assert length + turn.drafted <= max(limit, length)
        length += len(turn.tokens)
    assert rounds[-1].drafted == 0


def test_a_round_of_a_tree_tells_its_depth_and_what_was_kept_of_it():
    """Nodes 2 and 4 are deeper on the path of node 0, the second child of the context is a leaf."""
    drafter = FixedDrafter((0, 1, 2, 3, 1), (-1, -1, 0, 0, 2))
    steps = []

    class Told(FixedDrafter):
        def draft(self, context, *rest):
            steps.append(context.last and list(context.last.kept))
            return super().draft(context, *rest)

    found = {}
    for seed in range(150):
        (turn, *_) = run(seed=seed, tokens=5, k=3, drafter=drafter, verifier=Match())
        assert (turn.drafted, turn.depth, turn.overlap) == (5, 3, None)
        found[tuple(turn.tree.path)] = turn.tree.siblings, turn.tree.offered, turn.full
    deepest = (0, 0, 0), (2, 2, 1, 0), True
    assert found.pop((0, 2, 4), deepest) == deepest
    assert found == {
        (): ((), (2,), False),
        (0,): ((0,), (2, 2), False),
        (1,): ((1,), (2, 0), True),
        (0, 2): ((0, 0), (2, 2, 1), False),
        (0, 3): ((0, 1), (2, 2, 0), True),
    }
    told = Told(drafter.tokens, drafter.parents)
    rounds = run(tokens=12, k=3, drafter=told, verifier=Match())
    assert steps == [None, *(list(r.tree.path)[: len(r.tokens) - 1] for r in rounds[:-1])]


def test_a_schedule_may_bound_the_nodes_of_a_tree():
    class Widening(Constant):
        def nodes(self, history):
            return len(history) + 1

    drafter = FixedDrafter((0, 1, 2, 3, 0, 1, 2, 3), (-1, -1, -1, -1, 0, 0, 1, 1))
    rounds = run(drafter=drafter, verifier=Match(), schedule=Widening(2), tokens=20)
    assert [turn.drafted for turn in rounds[:-2]] == [*range(1, 9), *[8] * 99][: len(rounds) - 2]


def test_the_probabilities_of_a_tree_come_with_its_shape():
    """Each node's q is the target's after the nodes above it, and so are its likeliest tokens."""
    drafter, text = FixedDrafter((0, 1, 2, 3), (-1, -1, 0, 1)), [0, 1]
    rounds = run(tokens=30, k=2, drafter=drafter, verifier=Match(), probs=True, likeliest=2)
    for turn in rounds:
        probs = turn.probs
        n = turn.drafted
        assert probs.tokens == [0, 1, 2, 3][:n]
        assert probs.parents == ([-1, -1, 0, 1] if n else probs.parents)
        assert probs.likeliest is not None
        assert len(probs.likeliest) == n + 1
        for above, row in enumerate(probs.likeliest, start=-1):
            walk, node = [], above
            while node >= 0:
                walk, node = [probs.tokens[node], *walk], (probs.parents or [])[node]
            row_probs = PAIR.q(tuple(text + walk))
            assert row[1::2] == pytest.approx(sorted(row_probs, reverse=True)[:2])
            for child, parent in enumerate(probs.parents or []):
                if parent == above:
                    assert probs.q[child] == pytest.approx(float(row_probs[probs.tokens[child]]))
        text += turn.tokens
    assert any(turn.accepted == 2 for turn in rounds)


def test_counts_and_overlap_by_hand():
    """sum_x min(p, q) over the slots that the rule looked at, worked out from the tables."""
    checked = set()
    for seed in range(6):
        text = (0, 1)
        drafts = []

        class Kept(ModelDrafter):
            def draft(self, *args, kept=drafts):
                kept.append(super().draft(*args))
                return kept[-1]

        for turn, draft in zip(run(seed=seed, drafter=Kept(session(PAIR.p))), drafts, strict=True):
            n = turn.drafted
            assert n == len(draft.tokens)
            assert turn.tested == min(turn.accepted + 1, n)
            shared = 0.0
            for slot in range(turn.tested):
                before = (*text, *draft.tokens.tolist()[:slot])
                shared += sum(map(min, PAIR.q(before), PAIR.p(before)))
            assert turn.overlap == pytest.approx(shared, abs=1e-12)
            assert turn.tokens[: turn.accepted] == draft.tokens.tolist()[: turn.accepted]
            text = (*text, *turn.tokens)
            checked.add((n, turn.accepted))
    assert len(checked) > 4


DISTINCT = FixedDrafter((0,))
DISTINCT.drawn = Drawn.DISTINCT


@pytest.mark.parametrize("verifier", [Sps(), Block()])
@pytest.mark.parametrize(
    "drafter",
    [NgramDrafter(), FixedDrafter((0, 1), (-1, -1)), DISTINCT],
    ids=["rule", "tree", "distinct"],
)
def test_unsound_pairings_are_refused(verifier, drafter):
    target = session()
    with pytest.raises(PairingError):
        run(verifier=verifier, drafter=drafter, target=target)
    assert target.length == 0


class Broken(TableLM):
    """Logits that are no numbers, once the context has `length` tokens."""

    def __init__(self, law: object, value: float, length: int) -> None:
        super().__init__(law, 4)
        self.value, self.at = value, length

    def append(self, tokens, keep, parents=None):
        scores = super().append(tokens, keep, parents)
        if keep and self.length >= self.at:
            scores.logits[-1, 2] = self.value
        return scores


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("warp", [Warp(), Warp(0), Warp(top_k=2, top_p=0.9)], ids=str)
@pytest.mark.parametrize("verifier", [Sps(), Block()])
def test_logits_that_are_no_numbers_end_it_with_the_model_and_place(value, warp, verifier):
    parts = {"warp": warp, "verifier": verifier, "k": 2}
    for model, broken in (
        ("target", {"target": Broken(PAIR.q, value, 2)}),
        ("target", {"target": Broken(PAIR.q, value, 6)}),
        ("target", {"target": Broken(PAIR.q, value, 2), "verifier": Match()}),
        ("draft model", {"drafter": ModelDrafter(Broken(PAIR.p, value, 2))}),
    ):
        with pytest.raises(NonFiniteError) as caught:
            run(**parts | broken)
        assert f"from the {model} at position" in str(caught.value)


def test_an_abandoned_generation_leaves_the_session_usable():
    target, drafter = session(), ModelDrafter(session(PAIR.p))
    parts = {"target": target, "drafter": drafter, "verifier": Sps(), "schedule": Constant(3)}
    rest = {"warp": Warp(), "noise": PhiloxStream(1), "limits": Limits(9)}
    next(decode([2, 3], **parts, **rest))
    assert output(run(target=target, drafter=drafter)) == output(run())


def test_no_global_generator_is_read_or_moved():
    def states():
        kind, keys, *rest = numpy.random.get_state()
        return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()

    before = states()
    first = output(run())
    assert states() == before
    torch.manual_seed(1)
    random.seed(1)
    assert output(run()) == first
