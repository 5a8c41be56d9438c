"""What a head drafts from, round by round: as if all were computed anew from the text.

The shipping loop runs over an engine's session; at each round all probs of the draft are compared
with `stage.scratch`, which has no cache and takes the target's features for the whole text.
"""

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.engines.static import Static, idle_runners
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Schedule, Scores
from spsbench.methods.drafters import head_frontier
from spsbench.methods.drafters.head_frontier import HeadFrontier
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.tree_rejection import Recursive
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.head_faults import (
    FAMILIES,
    PARALLEL,
    PROMPT,
    TOKENS,
    TREE,
    VOCAB,
    WARP,
    Compared,
    K,
    compared,
)
from tests.heads.stage import HeadSite, Known, scratch, whole


@pytest.fixture(scope="module")
def sites(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    sites = {
        name: HeadSite(write(folder / name, target), target) for name, write in FAMILIES.items()
    }
    for name in RECORDED:
        site = sites[f"recorded {name}"] = HeadSite(folder / name, target)
        Static().pack(site.drafter()._frontier.network)
    return sites


def always(p):
    return torch.tensor(True)


DISTINCT = {"rule": Recursive(), **TREE}
IID = DISTINCT | {"siblings": "iid"}
RECORDED = ("eagle3", "mtp", "medusa", "mlp")
QUICK = {f"chain-{head}" for head in ("eagle", "eagle3", "mtp", "3.1", "falcon", "mlp", "dspark")}
QUICK |= {"tree-eagle3", "tree-mlp", "recorded tree", *(f"recorded {h}" for h in RECORDED)}
HOW = {
    **{f"chain-{h}": (h, {"sampled": True} if h in PARALLEL else {}) for h in FAMILIES},
    **{f"tree-{head}": (head, DISTINCT) for head in FAMILIES},
    **{f"i.i.d. tree-{head}": (head, IID) for head in ("eagle", "3.1")},
    **{f"recorded {h}": (f"recorded {h}", {"sampled": True}) for h in RECORDED},
    "recorded tree": ("recorded eagle3", DISTINCT),
}


@pytest.mark.parametrize(
    ("head", "how"),
    [
        pytest.param(*row, marks=[] if name in QUICK else pytest.mark.slow, id=name)
        for name, row in HOW.items()
    ],
)
def test_every_distribution_is_as_from_scratch(sites, target, head, how):
    seen = compared(sites[head], target, **how)
    assert seen.seen > VOCAB // 2
    assert seen.worst < 1e-12


def test_texts_in_turn_share_recorded_steps(sites, target):
    site, seen = sites["recorded eagle3"], []
    network, parts = site.drafter()._frontier.network, site.target()
    for _ in range(4):
        compared(site, target)
        runners = idle_runners(network, (), parts.embed, parts.lm_head)
        buffers = {id(r): [layer.addresses for layer in r.cache.layers] for r in runners}
        seen.append((buffers, {id(replay) for r in runners for replay in r.replays.values()}))
    assert seen[-1] == seen[-2]
    assert {key[0] for r in runners for key in r.replays} == {"read", "feed", "scores"}


def test_a_prompt_that_is_read_in_several_parts(sites, target, monkeypatch):
    monkeypatch.setattr(head_frontier, "CHUNK", 2)
    assert compared(sites["eagle3"], target).worst < 1e-12


class Sometimes(Schedule):
    def k(self, history):
        return 0 if len(history) % 3 else K


def test_rounds_without_a_draft_spend_no_pass_and_are_read_later(sites, target, monkeypatch):
    site, passes = sites["eagle3"], []
    read = HeadFrontier._take

    def counted(self, hidden, tokens):
        passes.append(len(tokens))
        read(self, hidden, tokens)

    monkeypatch.setattr(HeadFrontier, "_take", counted)
    plain = site.drafter()
    watched = Compared(site.drafter(), scratch(plain, Known(target, plain.layers), WARP))
    lm, how = EagerLM(target, layers=watched.layers), {"verifier": Sps(), "warp": WARP, "seed": 1}
    done = rounds_of(lm, watched, TOKENS, prompt=PROMPT, schedule=Sometimes(), **how)
    assert watched.seen > K
    assert watched.worst < 1e-12
    drafting = sum(turn.drafted > 0 for turn in done)
    assert len(passes) == drafting  # the prompt, then one for each draft but the first
    assert max(passes[1:]) >= 3


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_a_parallel_head_foretells_from_masks(target, tmp_path, tree):
    """Slot i is what masks in place of i drafted tokens and of their features give."""
    site = HeadSite(writers.peagle(tmp_path, target), target)
    network, parts = site.drafter()._frontier.network, site.target()
    known = Known(target, network.layers)

    def laws(text, drafted):
        n, mask = len(drafted), list(network.mask_hidden[0].chunk(3, -1))
        features = torch.cat([network.fuse(known.hidden(text[:-1])), *([network.fuse(mask)] * n)])
        tokens = torch.tensor([*text[1:], *[network.shape.mask_token] * n])
        states = whole(network, features, tokens, parts)
        law = WARP(network.scores(states[-1:], parts.head))[0]
        return law.new_zeros(VOCAB).index_copy(0, network.ids, law)

    watched = Compared(site.drafter(**(TREE if tree else {})), laws)
    rule, lm = Recursive() if tree else Sps(), EagerLM(target, layers=watched.layers)
    more = {"k": 6, "seed": 1}  # of tokens: more than the head was trained for at once
    rounds_of(lm, watched, TOKENS, prompt=PROMPT, verifier=rule, warp=WARP, **more)
    assert watched.seen >= TOKENS
    assert watched.worst < 1e-12


def test_a_tree_that_grows_has_the_likeliest_paths(sites, target):
    site = sites["eagle3"]
    plain = site.drafter()
    known = Known(target, plain.layers)
    laws, text = scratch(plain, known, Warp(1.0)), (1, 5, 3, 7)
    best = site.drafter(width=VOCAB, depth=2, nodes=9)
    prefill = dict(zip(plain.layers, known.hidden(text[:-1]), strict=True))
    best.begin(text, Scores(torch.empty(0, VOCAB), prefill))
    draft = best.draft(Context(text, Warp(1.0), None), 4, PhiloxStream(0).round(0), always)
    paths = []
    for token, above in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        paths.append((*(paths[above] if above >= 0 else ()), token))
    first = laws(text, ())
    chances = {(a,): float(first[a]) for a in range(VOCAB)}
    for a in range(VOCAB):
        chances |= {(a, b): float(first[a] * p) for b, p in enumerate(laws(text, (a,)))}
    wanted = sorted(chances, key=chances.__getitem__)[-9:]
    assert sorted(paths) == sorted(wanted)
