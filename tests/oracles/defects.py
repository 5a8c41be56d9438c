"""Every planted defect of the distributions in one table, and the walks that look for it.

A defect is what is planted: patches of names (`"module.name"`) and parts that stand in for those
of a walk (`verifier`, `drafter`, `schedule`, `address`, `package_warp`, `lm`, `frontier`). A walk
takes those parts and returns how far the output's distribution is from the true one: 0 = equal.
Defects of the noise are ways to give two draws one address: their distributions are exact, since a
uniform that is used twice is cut into cells twice.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from spsbench.audit.exact.cases import Case, Outcome
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import ArgmaxDrafter, FixedDrafter, tree_kind
from spsbench.audit.exact.enumeration import total_variation_distance, walks, whole_texts
from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.heads import network
from spsbench.loop import decode, sampling
from spsbench.loop.processors import TextProcessors
from spsbench.loop.sampling import Warp
from spsbench.loop.tree import tree_of
from spsbench.loop.types import Context, Draft, Drawn, Limits, Purpose
from spsbench.messages import ignore
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.drafters.shaped import ShapedDrafter
from spsbench.methods.schedules.by_distribution import Confidence
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers import spectr
from spsbench.methods.verifiers import sps as sps_rule
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.methods.verifiers.tree_rejection import Recursive, TreeRejection
from spsbench.settings.processors import Processors
from tests.heads import head_faults, writers
from tests.heads.stage import HeadSite, with_frontier
from tests.oracles.models import tiny
from tests.oracles.written_rules import case

PLAIN, WIDE, ZEROS = (
    ToyPair(2, 3, ("plain",)),
    ToyPair(3, 2, ("plain",)),
    ToyPair(3, 4, ("plain", "zeros")),
)
SPARSE = ToyPair(3, 6, ("zeros",))  # drafts of two tokens, and what is left of a third
WIDER = ToyPair(4, 4, ("plain",))  # of three tokens the third distinct one would be certain
TOP_K, GREEDY = {"top_k": 2}, {"temperature": 0.0}
IID, DISTINCT = Drawn.IID, Drawn.DISTINCT
Parts = Mapping[str, Any]


@dataclass(frozen=True)
class Defect:
    """What is planted, the walk that sees it, and the drafter kind with which the audit does."""

    name: str
    planted: Mapping[str, Any]
    seen_by: str
    kind: str = ""

    @contextmanager
    def plant(self) -> Iterator[Parts]:
        """Plant the patches; yield the parts."""
        with ExitStack() as patches:
            for name, value in self.planted.items():
                if "." in name:
                    patches.enter_context(patch(name, value))
            yield {n: v for n, v in self.planted.items() if "." not in n}


# Walks ---------------------------------------------------------------------------------------

RULES = {
    "sps": Sps(),
    "block": Block(),
    "match": Match(),
    "recursive": Recursive(),
    "traversal": Traversal(),
    "spectr": SpecTr(),
}


def distance(setting: Case) -> float:
    """Total variation from the target's distribution, each uniform near its cell's lower end."""
    law: dict[Outcome, float] = {}
    for walk in walks(setting):
        law[walk.outcome] = law.get(walk.outcome, 0.0) + walk.weight
    if setting.one_round:
        law = whole_texts(setting, walk.q, law)
    return total_variation_distance(law, setting.expected())


def first_above(distances: Iterator[float]) -> float:
    return next((x for x in distances if x > 1e-12), 0.0)


def texts(name: str, *settings: tuple[ToyPair, dict[str, Any]]) -> Callable[[Parts], float]:
    """Whole texts by a rule whose thresholds are written by hand."""

    def walk(parts: Parts) -> float:
        rows = ((pair, {"verifier": RULES[name], **fields, **parts}) for pair, fields in settings)
        return first_above(distance(case(name, r.pop("verifier"), pair, **r)) for pair, r in rows)

    return walk


class AnySize(ShapedDrafter):
    """Drafts its whole shape, however many nodes fit."""

    def draft(self, context: Context, *rest: Any) -> Draft:
        return super().draft(context._replace(nodes=None), *rest)


def tree_round(rule: Any, parents: tuple[int, ...], drawn: Any, pair: ToyPair, **more: Any) -> Case:
    """One round on a tree: tokens by rule, or `drawn` independently or without replacement."""
    if isinstance(drawn, tuple):
        fields = {"drafter": lambda lm: FixedDrafter(drawn, parents), "tokens": 3}
        cells, depth = DiscoveredRule(rule), 2
    else:
        kind = tree_kind("", parents, drawn)
        depth = max(tree_of(parents).depth)
        fields = {
            "drafter": lambda lm: AnySize(Frontier(lm), parents, drawn),
            "tokens": depth + 1,
            "prompt": (0, 1),
        }
        cells = DiscoveredRule(rule, kind.drawn)
    fields |= {"schedule": Constant(depth), "one_round": True}
    return Case(rule, cells, pair.q, pair.p, pair.vocab, **fields | more)


def trees(name: str, *rounds: tuple[Any, ...], **more: Any) -> Callable[[Parts], float]:
    """One round of each tree by a rule whose thresholds are asked for: (parents, drawn, pair)."""

    def walk(parts: Parts) -> float:
        rule = parts.get("verifier", RULES[name])
        return first_above(distance(tree_round(rule, *row, **more)) for row in rounds)

    return walk


def on_a_device(module: str, walk: Callable[[Parts], float]) -> Callable[[Parts], float]:
    """The walk with no value on the host, so that every decision is made by tensors."""

    def on_tensors(parts: Parts) -> float:
        rules, nowhere = "spsbench.methods.verifiers.", {}.get  # None for every tensor
        with (
            patch(f"{rules}{module}.host_numbers", nowhere),
            patch(f"{rules}walk_down.host_numbers", nowhere),
        ):
            return walk(parts)

    return on_tensors


def late(name: str) -> Callable[[Parts], float]:
    """One round of each K from 3 to 5: what is wrong from the third slot on."""
    pair = ToyPair(2, 14, ("plain",))
    alone = ({"tokens": k + 1, "schedule": Constant(k), "one_round": True} for k in (3, 4, 5))
    return texts(name, *((pair, fields) for fields in alone))


@cache
def head_site(name: str) -> tuple[HeadSite, Any]:
    target = tiny("llama", vocab=12, num_hidden_layers=6, scale=1.0)
    folder = Path(tempfile.mkdtemp())
    return HeadSite(getattr(writers, name)(folder / name, target), target), target


def heads(parts: Parts, **more: Any) -> float:
    """Probs of a head's drafts, round by round, compared with those computed from scratch."""
    site, target = head_site("eagle")
    spoil = with_frontier(parts["frontier"]) if "frontier" in parts else ignore
    worst = head_faults.compared(site, target, spoil, **more).worst
    return 0.0 if worst < 1e-12 else worst


def offsets(parts: Parts) -> float:
    """Share of the tokens of heads without `t2d` that are read as others than were written."""
    target, worst = tiny("llama", vocab=20, num_hidden_layers=8, dtype=torch.float32), 0.0
    for write in writers.eagle3, writers.speculators:
        with tempfile.TemporaryDirectory() as folder:
            head = write(Path(folder), target)
            tensors = load_file(head / "model.safetensors")
            chosen = tensors.pop("t2d").nonzero()[:, 0]
            save_file(tensors, head / "model.safetensors")
            ids = HeadSite(head, target).drafter()._frontier.network.ids
        worst = max(worst, float((ids != chosen).double().mean()))
    return worst


ONE = (-1,)
SIBLINGS_BY_RULE = {
    "drafter": lambda lm: FixedDrafter((0, 1), ONE * 2),
    "tokens": 2,
    "schedule": Constant(1),
}
PENALTIES = Processors(repetition=1.6, presence=0.4)
PENALISED = {"tokens": 3, "prompt": (0, 1, 0), "processors": PENALTIES}
WALKS: dict[str, Callable[[Parts], float]] = {
    "processed sps": texts("sps", (WIDE, PENALISED), (WIDE, PENALISED | {"warp": TOP_K})),
    "processed trees": trees(
        "match", ((-1, -1, 0, 0, 1), (2, 1, 0, 1, 2), WIDE), prompt=(0, 0), processors=PENALTIES
    ),
    "sps": texts(
        "sps",
        (PLAIN, {}),
        (WIDE, {}),
        (WIDE, {"warp": TOP_K}),
        (WIDE, {"eos": frozenset({1})}),
        (WIDE, {"warp": GREEDY}),
        (ZEROS, {}),
    ),
    "block": texts("block", (PLAIN, {"tokens": 4}), (WIDE, {})),
    "match": texts(
        "match", (PLAIN, {"drafter": ArgmaxDrafter}), (PLAIN, {}), (WIDE, SIBLINGS_BY_RULE)
    ),
    "sps on a device": on_a_device("sps", texts("sps", (PLAIN, {}), (WIDE, {}), (ZEROS, {}))),
    "match on a device": on_a_device(
        "match", texts("match", (PLAIN, {"drafter": ArgmaxDrafter}), (PLAIN, {}))
    ),
    "late sps": late("sps"),
    "late block": late("block"),
    "late match": late("match"),
    "recursive": trees(
        "recursive",
        (ONE * 2, IID, WIDE),
        (ONE * 2, DISTINCT, WIDE),
        (ONE * 2, (0, 1), WIDE),
        (ONE * 3, DISTINCT, WIDER),
    ),
    "recursive, cut": trees(
        "recursive",
        (ONE * 3, IID, WIDE),
        (ONE * 3, DISTINCT, WIDE),
        target_limit=4,
        one_round=False,
    ),
    "traversal": trees(
        "traversal", (ONE * 2, (0, 1), WIDE), ((-1, 0), IID, PLAIN), ((-1, -1, 0), IID, PLAIN)
    ),
    "spectr": trees("spectr", (ONE * 2, IID, PLAIN), (ONE * 3, IID, SPARSE)),
    "match trees": trees(
        "match", ((-1, -1, 0, 0, 1), (2, 1, 0, 1, 2), WIDE), ((-1, 0, 0), (2, 1, 0), WIDE)
    ),
    "head chains": heads,
    "head trees": partial(heads, rule=Recursive(), shape="3x2x1", siblings="distinct"),
    "head offsets": offsets,
}


# What is planted -----------------------------------------------------------------------------

MATCH = "spsbench.methods.verifiers.match."
SPS = "spsbench.methods.verifiers.sps."
BLOCK = "spsbench.methods.verifiers.block."
WALK_DOWN = "spsbench.methods.verifiers.walk_down."
SPECTR = "spsbench.methods.verifiers.spectr."
TREE = "spsbench.methods.verifiers.tree_rejection.TreeRejection."
CUT, RESIDUAL, REFUSE = decode.cut_block, sampling.residual, TreeRejection._refuse
REFUSE_LEVEL, TRIES = TreeRejection.refuse_level, spectr.tries
SIBLING_PROBS, SLOT_PROBS, ROW = TreeRejection._probs, sps_rule.slot_probs, sampling.row
KNOWN_IDS = network.known_ids


PROCESSED, FOLLOW = TextProcessors.rows, TextProcessors._follow
OF_TEXTS = "spsbench.loop.processors.TextProcessors."


def keeping_drafts(self: Any, logits: Any, text: Any, paths: Any) -> Any:
    """Rows of processors whose counts keep what was drafted."""
    rows = PROCESSED(self, logits, text, paths)
    for token in max(paths, key=len):
        FOLLOW(self, [*self._text, token])
        self._text.pop()
    return rows


def without_last_row(self: Any, logits: Any, text: Any, paths: Any) -> Any:
    """Rows of processors that leave out the bonus token's."""
    rows = PROCESSED(self, logits, text, paths)
    return torch.cat([rows[:-1], logits[-1:]]) if len(paths) > 1 else rows


class StatesUnpenalised(ModelDrafter):
    """States the distribution before the penalties, and draws from the one after them."""

    def draft(self, context: Context, k: int, noise: Any, go_on: Any) -> Draft:
        draft = super().draft(context, k, noise, go_on)
        text = [*context.tokens, *draft.tokens.tolist()]
        return replace(draft, probs=self.along(text, len(context.tokens), context.warp).probs)


def rule(base: Any, call: Callable[..., Any]) -> Any:
    """A rule of its own: `call(base, draft, q, noise)`."""
    kind = type(call.__name__, (type(base),), {"__call__": lambda self, *a: call(base, *a)})
    return dataclass(frozen=True)(kind)()


@dataclass(frozen=True)
class Altered:
    """A round's noise with the uniforms of one purpose changed."""

    noise: Any
    purpose: Purpose
    change: Callable[..., Any]

    def uniform(self, purpose: Purpose, n: int) -> Any:
        u = self.noise.uniform(purpose, n)
        return self.change(u) if purpose is self.purpose else u


def by_noise(base: Any, purpose: Purpose, change: Callable[..., Any]) -> Any:
    """A rule that hears other uniforms of one purpose."""
    return rule(base, lambda b, d, q, noise: b(d, q, Altered(noise, purpose, change)))


class RowBefore(Sps):
    """The last token comes from the row before its own."""

    def __call__(self, draft, q, noise):
        verdict = Sps()(draft, q, noise)
        a = int((verdict.path >= 0).sum())
        law = q[max(a - 1, 0)]
        law = sampling.residual(law, draft.probs[a]) if a < len(draft.tokens) else law
        return verdict._replace(token=sampling.sample(law, noise.uniform(Purpose.FINAL, 1)[0]))


@dataclass(frozen=True)
class Lenient(Sps):
    """Keeps x with probability min(1, q / (size p)): each draft at size 0."""

    size: float = 0.9

    def __call__(self, draft, q, noise):
        return Sps()(draft, q, Altered(noise, Purpose.ACCEPT, lambda u: self.size * u))


def stops_early(base, draft, q, noise):
    """Ends at the first prefix that fails, though a longer one may pass."""
    slots, n = torch.arange(len(draft.tokens)), len(draft.tokens)

    def alone(slot):
        return base(draft, q, Altered(noise, A, lambda u: u.masked_fill(slots != slot, 1.0)))

    verdicts = [alone(slot) for slot in range(-1, n)]
    kept = [int((verdict.path >= 0).sum()) for verdict in verdicts]
    return verdicts[next((i for i in range(n + 1) if kept[i] != i), n + 1) - 1]


def redraws(base, draft, q, noise):
    """Compares with a token of the target, and draws another when they differ."""
    verdict = base(draft, q, noise)
    a = int((verdict.path >= 0).sum())
    token = sampling.sample(q[a], noise.uniform(F, 1)[0])
    return verdict._replace(token=token) if a < len(draft.tokens) else verdict


def next_residual(base, draft, q, noise):
    n = len(draft.tokens)
    with patch(SPS + "slot_probs", lambda draft, a: SLOT_PROBS(draft, min(a + 1, n))):
        return base(draft, q, noise)


def again_from_accept(base, draft, q, noise):
    n = len(draft.tokens)
    again = lambda u: noise.uniform(Purpose.ACCEPT, n)[-1:] if n else u  # noqa: E731
    return base(draft, q, Altered(noise, Purpose.FINAL, again))


def clamped_bonus(base, draft, q, noise):
    verdict = base(draft, q, noise)
    kept = verdict.path >= 0
    bonus = sampling.sample(
        sampling.row(q, kept.sum().clamp(max=2)), noise.uniform(Purpose.FINAL, 1)[0]
    )
    return verdict._replace(token=torch.where(kept.all(), bonus, verdict.token))


def late_weights(ratio):
    weights = [ratio.new_ones(())]
    for i, each in enumerate(ratio):
        weights.append((weights[-1] * each).clamp(max=1.0 if i < 2 else 1.05))
    return torch.stack(weights)


def other_siblings(base, draft, q, noise):
    return base(replace(draft, drawn=IID if draft.drawn is DISTINCT else DISTINCT), q, noise)


def order_of_ids(base, draft, q, noise):
    order = draft.tokens.argsort(stable=True)
    moved = Draft(draft.tokens[order], draft.probs[order], draft.parents, draft.drawn)
    verdict = base(moved, torch.cat([q[:1], q[1:][order]]), noise)
    path = torch.where(verdict.path >= 0, order[verdict.path.clamp(min=0)], -1)
    return verdict._replace(path=path)


def bonus_of_another(base, draft, q, noise):
    verdict = base(draft, q, noise)
    token = sampling.sample(q[1], noise.uniform(Purpose.FINAL, 1)[0])
    return verdict._replace(token=torch.where(verdict.path[0] < 0, verdict.token, token))


def takes_a_law(base, draft, q, noise):
    even = torch.full((len(draft.tokens), q.shape[-1]), 1 / q.shape[-1], dtype=q.dtype)
    return base(replace(draft, probs=even, drawn=IID), q, noise)


def one_draw_per_path(base, draft, q, noise):
    above = draft.tree.parents
    rows = [0, *(1 + (above[above[n]] if above[n] >= 0 else n) for n in range(len(above)))]
    u = noise.uniform(Purpose.PLAIN, len(rows))[rows]
    return base(draft, q, Altered(noise, Purpose.PLAIN, lambda _: u))


def kept_weight(self, here, *rest):
    before = self.weight[here].clone()
    REFUSE(self, here, *rest)
    self.weight[here] = before


def own_law(self, here, before, nodes, rank):
    own, weight, scale = (
        self.q[self.order[here]],
        self.weight[here].clone(),
        self.scale[here].clone(),
    )
    REFUSE(self, here, own, nodes, rank)
    self.left[here], self.weight[here], self.scale[here] = own, weight, scale


def second_by_rule_kept(base, draft, q, noise):
    with patch(TREE + "_refuse", own_law if draft.probs is None else REFUSE):
        return base(draft, q, noise)


def cut_by_value(draft, nodes):
    """The tree of siblings cut to those of the greatest ids."""
    if draft.parents is None or nodes is None or len(draft.tokens) <= nodes:
        return draft
    kept = draft.tokens.argsort(descending=True, stable=True)[:nodes].sort().values
    return replace(
        draft, tokens=draft.tokens[kept], probs=draft.probs[kept], parents=draft.parents[kept]
    )


def absolute(shape, tensors, vocab):
    """Takes offsets for tokens where no `t2d` contradicts."""
    ids, rest = KNOWN_IDS(shape, tensors, vocab)
    return (tensors["d2t"].long() if "t2d" not in tensors else ids), rest


def backwards(shape, tensors, vocab):
    """Subtracts offsets where no `t2d` contradicts."""
    ids, rest = KNOWN_IDS(shape, tensors, vocab)
    rows = torch.arange(len(tensors["d2t"]))
    return (rows - tensors["d2t"].long() if "t2d" not in tensors else ids), rest


def first_given_back(self, nodes, rank):
    left, total = SIBLING_PROBS(self, nodes, rank)
    if self.draft.drawn is not DISTINCT or rank < 2:
        return left, total
    family = [self.tree.children[self.tree.parents[node] + 1] for node in nodes]
    first = self.draft.tokens[[siblings[0] for siblings in family]][:, None]
    left = left.scatter(1, first, self.draft.probs[list(nodes)].gather(1, first))
    return left, left.sum(-1)


def copied_with(function, **names):
    """A function of a module that sees some names of it as they are given."""
    return FunctionType(function.__code__, {**function.__globals__, **names})


class UnwarpedLaws(ModelDrafter):
    def draft(self, context, *rest):
        raw = []
        warp = lambda logits: raw.append(Warp()(logits)[0]) or context.warp(logits)  # noqa: E731
        draft = super().draft(context._replace(warp=warp), *rest)
        return replace(draft, probs=torch.stack(raw)) if len(draft.tokens) else draft


class Shortened(ModelDrafter):
    """A draft cut to as many tokens as its own values say."""

    def draft(self, *args):
        draft = super().draft(*args)
        n = self.length(draft) if len(draft.tokens) else 0
        return Draft(draft.tokens[:n], draft.probs[:n] if n else None)


class DropsWeak(Shortened):
    def length(self, draft):
        return len(draft.tokens) - bool(draft.probs[-1, draft.tokens[-1]] < 0.5)


class ChoosesLengthLate(Shortened):
    def length(self, draft):
        return len(draft.tokens) if draft.tokens[0] == 0 else 0


class ShowsTheToken(ModelDrafter):
    def draft(self, context, k, noise, go_on):
        draft = super().draft(context, k, noise, Constant().go_on)
        for i, token in enumerate(draft.tokens):
            seen = torch.zeros_like(draft.probs[i]).index_fill(0, token[None], 1.0)
            if not go_on(seen * draft.probs[i]):
                return Draft(draft.tokens[:i], draft.probs[:i] if i else None)
        return draft


class SoftArgmax(ArgmaxDrafter):
    drawn = IID

    def draft(self, context, *rest):
        draft = super().draft(context, *rest)
        text, n = (*context.tokens, *draft.tokens.tolist()), len(context.tokens)
        rows = [PLAIN.p(text[: n + i]) for i in range(len(draft.tokens))]
        return replace(draft, probs=torch.tensor(rows, dtype=torch.float64)) if rows else draft


class StaleLM(TableLM):
    def commit(self, length, path=None):
        if length == 0:
            super().commit(0)


def stale(case, text, target):
    return (StaleLM if target else TableLM)(case.q if target else case.p, case.vocab)


def last_only(block, output, limits, *rest):
    if block[-1] in limits.eos:
        return block, "eos"
    return CUT(block, output, Limits(limits.max_new_tokens), *rest)


def one_more(prompt, limits, context):
    return limits.max_new_tokens + 1


def raw_bonus(logits):
    laws = Warp(**TOP_K)(logits)
    return torch.cat([laws[:-1], Warp()(logits[-1:])]) if len(laws) > 1 else laws


def likeliest(law, u):
    return law.argmax(-1)


low = torch.tensor(-1.0, dtype=torch.float64)
A, F, P = Purpose.ACCEPT, Purpose.FINAL, Purpose.PLAIN
weak = Confidence(0.5, most=2)
SEEN = {  # by walk and drafter kind
    ("processed sps", "model"): {
        "the first row's penalty is used for all": {
            OF_TEXTS + "rows": lambda self, logits, text, paths: PROCESSED(
                self, logits, text, [paths[0]] * len(paths)
            )
        },
        "the newest token is not counted": {
            OF_TEXTS + "_follow": lambda self, text: FOLLOW(self, text[:-1])
        },
        "counts keep a rejected token": {OF_TEXTS + "rows": keeping_drafts},
        "the bonus row has no penalty": {OF_TEXTS + "rows": without_last_row},
    },
    ("processed sps", ""): {"p is stated without the penalty": {"drafter": StatesUnpenalised}},
    ("processed trees", ""): {
        "a node counts its siblings": {
            OF_TEXTS + "rows": lambda self, logits, text, paths: PROCESSED(
                self, logits, text, [path and (*path, *paths[1]) for path in paths]
            )
        }
    },
    ("sps on a device", ""): {
        "on a device the residual is of the next slot": {
            SPS + "slot_probs": lambda d, a: SLOT_PROBS(d, (a + 1).clamp(max=len(d.tokens)))
        }
    },
    ("match on a device", ""): {
        "on a device match takes the row before": {
            MATCH + "row_at": lambda q, a: ROW(q, (a - 1).clamp(min=0))
        }
    },
    ("sps", ""): {
        "the recovered token is drawn from q": {SPS + "residual": lambda q, p: q},
        "the recovered token is drawn from |q - p|": {
            SPS + "residual": lambda q, p: q if p is None else (q - p).abs()
        },
        "p is raw, but the tokens are drawn from its top k": {"drafter": UnwarpedLaws},
        "one uniform for all slots": {"address": lambda i, n, purpose, slot: (i, purpose)},
        "the draft's uniforms are used again for acceptance": {
            "address": lambda i, n, purpose, slot: (i, min(purpose + 1, 2), slot)
        },
        "the draft's first uniform draws the last token too": {
            "address": lambda i, n, purpose, slot: (i, purpose % 2, slot)
        },
        "one uniform for the whole prompt": {"address": lambda *_: 0},
        "the same noise in every round": {"address": lambda i, n, purpose, slot: (purpose, slot)},
        "a token is dropped after its value was seen": {"drafter": DropsWeak},
        "a schedule looks at the drawn token": {"drafter": ShowsTheToken, "schedule": weak},
        "the length is chosen after the draw": {"drafter": ChoosesLengthLate},
        "the bonus token is not warped": {"package_warp": raw_bonus, "warp": TOP_K},
        "u <= q / p": {"verifier": by_noise(Sps(), A, lambda u: u.nextafter(low))},
        "an argmax draft is declared as drawn from p": {"drafter": SoftArgmax},
        "an EOS inside a block is passed over": {"spsbench.loop.decode.cut_block": last_only},
        "a text is one token longer than its budget": {
            "spsbench.loop.decode.token_budget": one_more
        },
        "greedy: soft laws and the argmax of the residual": {
            "package_warp": Warp(),
            "warp": GREEDY,
            WALK_DOWN + "sample": likeliest,
            "spsbench.methods.drafters.model.sample": likeliest,
        },
        "the cache keeps what was rejected": {"lm": stale},
    },
    ("block", ""): {
        "noise keyed by position": {"address": lambda i, n, purpose, slot: (purpose, n + slot)},
        "block verification with the token-wise residual": {
            BLOCK + "residual": lambda q, p: RESIDUAL(q / q.sum(-1), p)
        },
        "a prefix's bound taken for its chance": {
            BLOCK + "keep_chances": lambda draft, q, weight: weight[1:]
        },
    },
    ("sps", "model"): {
        "the last token comes from the row before": {"verifier": RowBefore()},
        "lenience 0.9": {"verifier": Lenient()},
        "what is left is less the law of the next slot": {"verifier": rule(Sps(), next_residual)},
        "the last test draws the last token too": {"verifier": rule(Sps(), again_from_accept)},
    },
    ("match", ""): {"match draws again on a mismatch": {"verifier": rule(Match(), redraws)}},
    ("block", "model"): {
        "block verification ends at the first failure": {"verifier": rule(Block(), stops_early)},
        "a prefix may weigh more than 1": {
            BLOCK + "prefix_weights": lambda ratio: torch.cat([ratio.new_ones(1), ratio.cumprod(0)])
        },
    },
    ("recursive, cut", ""): {
        "a tree is cut by what was drawn": {"spsbench.loop.types.Draft.within": cut_by_value}
    },
    ("recursive", "(fixed siblings)"): {
        "a sibling by rule leaves its mass to the next": {
            "verifier": rule(Recursive(), second_by_rule_kept)
        }
    },
    ("match", "model"): {
        "the uniform of the row before draws after a whole draft": {
            "verifier": by_noise(
                Match(), P, lambda u: torch.cat([u[:-1], u[-2:-1]]) if len(u) > 1 else u
            )
        }
    },
    ("late sps", "model"): {
        "the bonus comes from row 2 at most": {"verifier": rule(Sps(), clamped_bonus)},
        "uniforms come again after 3 slots": {
            "verifier": by_noise(Sps(), A, lambda u: u[torch.arange(len(u)) % 3])
        },
    },
    ("late block", "model"): {
        "block's weights go up to 1.05 from the third slot": {
            BLOCK + "prefix_weights": late_weights
        }
    },
    ("late match", "model"): {
        "uniforms come again after 4 rows": {
            "verifier": by_noise(Match(), P, lambda u: u[torch.arange(len(u)) % 4])
        }
    },
    ("recursive", "(i.i.d. siblings)"): {
        "independent siblings taken for distinct ones": {
            "verifier": rule(Recursive(), other_siblings)
        },
        "the bonus comes from the first node's row": {
            "verifier": rule(Recursive(), bonus_of_another)
        },
        "siblings tested against the target's own law": {TREE + "_refuse": own_law},
    },
    ("recursive", "(distinct siblings)"): {
        "siblings in the order of their ids": {"verifier": rule(Recursive(), order_of_ids)}
    },
    ("recursive", "(distinct three siblings)"): {
        "a third distinct sibling still holds the first": {TREE + "_probs": first_given_back}
    },
    ("traversal", "(i.i.d. tree)"): {
        "a refused subtree leaves its parent's weight": {TREE + "_refuse": kept_weight},
        "a subtree begins with weight 1": {
            TREE + "refuse_level": lambda self, first, rows, weights: REFUSE_LEVEL(
                self, first, rows, torch.ones_like(weights)
            )
        },
    },
    ("traversal", ""): {
        "tokens by rule taken for drawn ones": {"verifier": rule(Traversal(), takes_a_law)}
    },
    ("spectr", "(i.i.d. siblings)"): {
        "each sibling tested as if it were alone": {
            SPECTR + "rhos": lambda draft, q, k: torch.ones_like(q[:, 0])
        }
    },
    ("spectr", "(i.i.d. three siblings)"): {
        "what is left counts two tries": {
            SPECTR + "rhos": copied_with(spectr.rhos, tries=TRIES),
            SPECTR + "tries": lambda beta, k: TRIES(beta, k.clamp(max=2)),
        }
    },
    ("match trees", "(fixed tree)"): {
        "one draw for a path": {"verifier": rule(Match(), one_draw_per_path)}
    },
    ("head chains", ""): {
        f"head: {f.__name__}": {"frontier": f}
        for f in (
            head_faults.GuessesKept,
            head_faults.AnotherLayer,
            head_faults.NotShifted,
            head_faults.RejectedKept,
            head_faults.RowOfAnother,
            head_faults.PlaceStandsStill,
        )
    },
    ("head trees", ""): {
        f"head: {f.__name__}": {"frontier": f}
        for f in (head_faults.NextParent, head_faults.SeesAll)
    },
    ("head offsets", ""): {
        f"head: offsets are {how}": {f"{network.__name__}.known_ids": misread}
        for how, misread in (("ids", absolute), ("subtracted", backwards))
    },
}
DEFECTS = tuple(
    Defect(name, planted, *seen) for seen, rows in SEEN.items() for name, planted in rows.items()
)
