"""Which wiring a head was trained for: every wiring of its flags, scored over the same texts.

A wiring is what a file cannot show: the order of a concatenation, a feature before or after a norm,
hidden states one further. A wrong one gives right text and little acceptance. The target reads each
text once; the head drafts along the true tokens. The score is the expected number of tokens that a
draft keeps: the sum over depths d of the products of sum_x min(p, q) up to d. Differences are
paired by row, and their errors are between blocks of rows.

Controls: the head over other rows' features, which knows what embeddings say, and a random head.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spsbench.audit.statistical.texts import draw_prompts
from spsbench.audit.verify import TASKS
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.errors import DataError, SpsError, UsageError
from spsbench.heads.families import FLAGS, STATES
from spsbench.heads.head import Head, rewire
from spsbench.heads.network import HeadNetwork, load_network
from spsbench.loop.drafter_context import TargetParts
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Scores
from spsbench.messages import no_lines, takes_say
from spsbench.methods.drafters.head_frontier import HeadFrontier
from spsbench.plugins import plug_in
from spsbench.settings.commands import HeadSearch
from spsbench.spec import Spec

SURE = 4.0  # standard errors of a paired difference
MATTERS = 0.02  # part of the better score below which a difference is a tie
ALIVE = 0.05  # accepted tokens above the controls
BLOCK = 32  # tokens of a text whose rows are one observation, as their drafts overlap
STRIDE = 4  # tokens between two drafts where each takes passes of its own
ROLL = 17  # rows between a row and the features that the control gives it
SHORTEST = 16  # tokens of a text, apart from those of a draft

RIGHT, OTHERWISE, DEAD, NOT_DISTINCT = "right", "wired otherwise", "dead", "not distinguished"

Flags = tuple[tuple[str, str], ...]  # changes, name and value, as `FLAGS` orders them, if any


class TargetReading(NamedTuple):
    """The target's states and distributions along a text, computed once for every wiring."""

    tokens: Tensor  # [T]
    hidden: Mapping[int, Tensor]  # number of a hidden state -> [T, Ht]
    q: Tensor  # [T, V] distributions after each token


@dataclass(frozen=True, slots=True)
class WiringScore:
    """The acceptance of a head under one wiring."""

    flags: Flags
    kept: tuple[Tensor, ...]  # by block: [rows, depths] chances to keep so many tokens or more

    @property
    def by_depth(self) -> list[float]:
        """Return the share of drafts that keep one token or more, two or more, and so on."""
        shares: list[float] = torch.cat(self.kept).mean(0).tolist()
        return shares

    @property
    def accepted(self) -> float:
        """Return the tokens that a draft keeps."""
        return sum(self.by_depth)

    def over(self, other: "WiringScore") -> tuple[float, float]:
        """Return the mean difference to another wiring, its standard error by block (of 1: inf)."""
        pairs = zip(self.kept, other.kept, strict=True)
        gaps = torch.stack([(one - two).sum(1).mean() for one, two in pairs])
        rows = torch.tensor([float(len(block)) for block in self.kept])
        gaps = gaps * rows / rows.mean()
        error = float(gaps.std() / len(gaps) ** 0.5) if len(gaps) > 1 else inf
        return float(gaps.mean()), error

    def beats(self, other: "WiringScore") -> bool:
        """Return whether this wiring is better by more than chance, and by what matters."""
        gap, error = self.over(other)
        return gap > SURE * error and gap > MATTERS * self.accepted

    def to_json(self) -> dict[str, Any]:
        """Return flags, accepted tokens and shares by depth as plain values."""
        return {"flags": dict(self.flags), "accepted": self.accepted, "by_depth": self.by_depth}


@dataclass(frozen=True, slots=True)
class WiringFinding:
    """The verdict on the wiring of a head; truthy only if the declared one is right."""

    name: str  # the head's, as the user gave it
    drafter: Spec  # with the flags of the best wiring
    verdict: str  # right, wired otherwise, dead, or not distinguished
    unbeaten: tuple[WiringScore, ...]  # that no other beats, the fewest changes first: the best
    scores: tuple[WiringScore, ...]  # all that compute another thing, the declared one first
    controls: Mapping[str, float]  # tokens accepted over features of other rows, by a random head
    least: float  # smallest difference in accepted tokens that the texts could have shown
    damage: tuple[str, ...] = ()  # what the tensors of a dead head show

    @property
    def line(self) -> str:
        """Return the verdict in a sentence, with the argument to paste."""
        best, declared = self.unbeaten[0].accepted, self.scores[0].accepted
        others = " or ".join(flags_as_arguments(score.flags) for score in self.unbeaten[1:])
        if self.verdict == RIGHT:
            also = f"; not distinguished from {others}" if others else ""
            return (
                f"right: {self.name} is wired as it was trained. A draft keeps {best:.2f} tokens; "
                f"a difference of {self.least:.2f} would have been seen{also}"
            )
        if self.verdict == DEAD:
            marks = f": {'; '.join(self.damage)}" if self.damage else ""
            return (
                f"dead: {self.name} is not of this target, or damaged{marks}. A draft keeps "
                f"{best:.2f} tokens at best, and {max(self.controls.values()):.2f} by a control"
            )
        kept = f"A draft keeps {best:.2f} tokens, and {declared:.2f} as declared"
        if self.verdict == OTHERWISE:
            return f"wired otherwise: say `drafter` {self.drafter}. {kept}"
        either = flags_as_arguments(self.unbeaten[0].flags)
        return f"cannot be distinguished: {either} or {others}. {kept}. Give more `texts`"

    def to_json(self) -> dict[str, Any]:
        """Return verdict, line, drafter, controls, damage and scores of wirings as plain values."""
        return {
            "verdict": self.verdict,
            "line": self.line,
            "drafter": str(self.drafter),
            "least_difference": self.least,
            "controls": dict(self.controls),
            "damage": list(self.damage),
            "wirings": [
                score.to_json() | {"beaten": score not in self.unbeaten} for score in self.scores
            ],
        }

    def __bool__(self) -> bool:
        return self.verdict == RIGHT


def flags_as_arguments(flags: Flags) -> str:
    """Return `NAME=VALUE,...` for changes of flags, `as declared` for none."""
    return ",".join(f"{name}={value}" for name, value in flags) or "as declared"


@takes_say
def verify_head(pair: Any, plan: HeadSearch) -> WiringFinding:
    """Find the wiring that the head of a pair was trained for, along texts.

    Args:
        pair: result of `spsbench.load`, of a head and its target. SpsError: it has no head.
        plan: the texts, of which one at least must be long enough, else SpsError.
        say: receives each message for the user; None: messages go to `logging` only.
    """
    cell, loaded = pair.configured()
    if loaded.head is None:
        raise UsageError(
            f"`draft` {cell.draft or 'is left out'} with `drafter` {cell.drafter}: expected a "
            "head. Name one, or the target itself with `drafter` mtp"
        )
    tasks = [Spec.of_task(name) for name in plan.texts] or TASKS
    prompts = draw_prompts(cell, loaded, tasks, plan.count)
    texts = [text for p in prompts if len(text := p.ids[: plan.tokens]) >= SHORTEST + plan.depth]
    if not texts:
        raise DataError(
            f"no text of {SHORTEST + plan.depth} tokens or more (`texts`): expected some. Name "
            "longer ones"
        )
    return search(loaded.head, loaded.target, texts, loaded.vocab_size, plan.depth, str(cell.draft))


@torch.inference_mode()
def search(
    head: Head,
    model: Any,
    texts: Sequence[Sequence[int]],
    vocab: int,
    depth: int = 3,
    name: str = "the head",
) -> WiringFinding:
    """Score the wirings of a loaded head along texts, and judge the declared one.

    Two controls draft too: the best wiring over features of other rows, and a head of random
    weights. Of a dead head every matrix is repaired in turn, to say which is damaged. `head` has
    the wiring of its files and of the user's arguments, and `model` is its target, with `vocab`
    tokens (further logits are padding). `texts` are token ids of one text or more, `depth` is the
    tokens of a draft, and `name` the head's in the verdict.
    """
    layers, target = model.config.get_text_config().num_hidden_layers, TargetParts.of(model, vocab)
    heads = wirings(head, layers)
    states = {state for one in heads.values() for state in states_of(one, layers)}
    readings = [read(model, text, states, vocab) for text in texts]
    rolled = [
        text._replace(hidden={n: hidden.roll(ROLL, 0) for n, hidden in text.hidden.items()})
        for text in readings
    ]
    with no_lines():
        scores = [score(one, target, readings, depth, flags) for flags, one in heads.items()]
        top = heads[max(scores, key=lambda score: score.accepted).flags]
        controls = {
            "features of other rows": score(top, target, rolled, depth).accepted,
            "random head": score(shuffle_head(head), target, readings, depth).accepted,
        }
        verdict, unbeaten, least = judge_wirings(scores, max(controls.values()))
        revived = damage(head, lambda one: score(one, target, readings, depth))
        marks = tuple(revived) if verdict == DEAD else ()
        flags = {**head.files.overrides, **dict(unbeaten[0].flags)}
        drafter = Spec(head.family, tuple(flags.items()))
        different = tuple(drop_equal_wirings(scores))
        return WiringFinding(name, drafter, verdict, unbeaten, different, controls, least, marks)


def read(model: Any, tokens: Sequence[int], states: set[int], vocab: int) -> TargetReading:
    """Return a model's reading of a text in one pass, with the hidden states of these numbers."""
    ids = torch.tensor([list(tokens)], device=model.device)
    out = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    hidden = {n: out.hidden_states[n][0] for n in states}
    return TargetReading(ids[0], hidden, out.logits[0, :, :vocab].float().softmax(-1))


def wirings(head: Head, layers: int) -> dict[Flags, Head]:
    """Return changes of flags -> the head so wired: none first, then all, as `product` orders them.

    Without wirings that its file or the target's `layers` rule out. The heads share tensors.
    """
    choices: list[list[tuple[str, str] | None]] = []
    for flag, values in FLAGS[head.family].items():
        choices.append([None])
        for value in values or neighbours(states_of(head, layers)):
            try:
                other = rewire(head, {flag: value}, layers)
            except SpsError:
                continue  # the file has no such wiring
            states = states_of(other, layers)
            differs = other.shape != head.shape or states != states_of(head, layers)
            if differs and max(states) <= layers:
                choices[-1].append((flag, value))
    every = [tuple(change for change in choice if change) for choice in product(*choices)]
    return {flags: rewire(head, dict(flags), layers) for flags in every}


def states_of(head: Head, layers: int) -> tuple[int, ...]:
    """Return the numbers of the hidden states that a head reads."""
    return tuple(getattr(head.shape, STATES, (head.state or layers,)))


def neighbours(states: Sequence[int]) -> list[str]:
    """Return hidden states one lower, one higher, and reversed, such as `1-4-7`, if they exist."""
    near = [[i - 1 for i in states], [i + 1 for i in states], [*reversed(states)]]
    return ["-".join(map(str, one)) for one in near if min(one) >= 0 and one != [*states]]


def judge_wirings(
    scores: Sequence[WiringScore], control: float
) -> tuple[str, tuple[WiringScore, ...], float]:
    """Return the verdict, the wirings that no other beats, and the least difference that shows.

    `scores` are those of every wiring, the declared one first; `control` is the accepted tokens of
    the best control. The best wiring alone is DEAD if it hardly exceeds that. Else the unbeaten
    come with the fewest changes first: NOT_DISTINCT if two have the fewest, or another seems
    better, else RIGHT without changes or OTHERWISE with some.
    """
    ranked = sorted(drop_equal_wirings(scores), key=lambda score: -score.accepted)
    top = ranked[0]
    unbeaten = sorted((s for s in ranked if not top.beats(s)), key=lambda s: len(s.flags))
    best = unbeaten[0]
    rival = next((s for s in ranked if s is not best), best)
    least = min(max(SURE * best.over(rival)[1], MATTERS * best.accepted), best.accepted)
    if top.accepted - control < ALIVE:
        return DEAD, (top,), least
    alike = [s for s in unbeaten[1:] if len(s.flags) == len(best.flags)]
    seems_better = any(s.over(best)[0] > MATTERS * s.accepted for s in unbeaten)
    verdict = NOT_DISTINCT if alike or seems_better else OTHERWISE if best.flags else RIGHT
    return verdict, tuple(unbeaten), least


def drop_equal_wirings(scores: Sequence[WiringScore]) -> list[WiringScore]:
    """Return the scores by number of changes, without those that equal one of fewer changes."""
    kept: dict[bytes, WiringScore] = {}
    for score in sorted(scores, key=lambda score: len(score.flags)):
        kept.setdefault(torch.cat(score.kept).numpy().tobytes(), score)
    return list(kept.values())


def score(
    head: Head, target: TargetParts, texts: Sequence[TargetReading], depth: int, flags: Flags = ()
) -> WiringScore:
    """Let a head draft up to `depth` tokens along texts; return the score of its wiring `flags`.

    Plain heads draft after all rows at once, others `STRIDE` tokens apart; some end drafts earlier.
    """
    network = load_network(head, target)
    kind: Any = plug_in("drafters", Spec(head.family))().frontier_of(network)
    frontier = kind(network, target, PreallocatedCache())
    depth = min(depth, frontier.deepest or depth)
    at_once = isinstance(network, HeadNetwork) and kind is HeadFrontier
    blocks: list[Tensor] = []
    for text in texts:
        if at_once:
            overlaps = overlaps_in_one_pass(network, target, text, depth)
        else:
            overlaps = overlaps_by_drafting(frontier, text, depth)
        blocks += torch.split(overlaps.cumprod(1).cpu(), BLOCK if at_once else BLOCK // STRIDE)
    return WiringScore(flags, tuple(blocks))


def overlaps_in_one_pass(
    network: Any, target: TargetParts, text: TargetReading, depth: int
) -> Tensor:
    """Return [T - 1 - depth, depth] sums of min(p, q) of the drafts that begin after each row.

    Row i drafts after tokens 0 to i + 1 of the text's T; later rows, whose drafts would leave it,
    are left out. Pass d drafts token d of all: its row j reads what pass d - 1 wrote of row j - 1.
    """
    rows = len(text.tokens) - 1
    features = network.fuse([text.hidden[n][:-1].to(network.dtype) for n in network.layers])
    embedded = network.embed(text.tokens[1:], target.embed).to(network.dtype)
    places, cache = network.rotary.rows(0, rows, network.dtype), PreallocatedCache()
    row = torch.arange(rows, device=features.device)
    apart = row[:, None] - row
    within = apart < (getattr(network.shape, "window", None) or rows)
    overlaps = []
    for d in range(depth):
        seen = [apart >= d, *(apart == d - i for i in range(1, d + 1))]
        sees = torch.cat([block & within for block in seen], 1)
        output = network.step(features, embedded, places, cache, sees)
        end = rows - depth + d
        logits = network.scores(output[d:end], lambda x: target.head(x.to(target.dtype)))
        overlaps.append(draft_overlap(logits, text.q[1 + d : 1 + end], network.ids))
        features = pad(output[:-1], (0, 0, 1, 0))
    return torch.stack(overlaps, 1)


def overlaps_by_drafting(frontier: Any, text: TargetReading, depth: int) -> Tensor:
    """Return [rows, depth] sums of min(p, q) of drafts along the text, `STRIDE` tokens apart.

    For heads that `overlaps_in_one_pass` cannot run: their drafter's own `frontier` begins anew for
    each row. Rows whose draft is shorter than `depth` are left out; RuntimeError: all of them are.
    """
    tokens, rows = text.tokens.tolist(), []
    for n in range(STRIDE, len(tokens) - depth, STRIDE):
        hidden = {layer: states[: n - 1] for layer, states in text.hidden.items()}
        frontier.begin(tokens[:n], Scores(text.q[:0], hidden))
        context = Context(tokens[:n], Warp(1.0), None)
        if frontier.depth(context, depth) < depth:
            continue  # too short a text for this head
        logits, overlaps = frontier.root(context), []
        for d in range(depth):
            overlaps.append(draft_overlap(logits, text.q[n - 1 + d, None], None))
            if d + 1 < depth:
                logits = frontier.feed(text.tokens[n + d, None].cpu(), [d], [d - 1])
        rows.append(torch.cat(overlaps))
    return torch.stack(rows)


def draft_overlap(logits: Tensor, q: Tensor, ids: Tensor | None) -> Tensor:
    """Return [n] the sums of min(p, q) of [n, Vd] logits, whose columns are the tokens `ids`."""
    p = logits.float().softmax(-1)
    q = q[:, : p.shape[1]] if ids is None else q[:, ids]
    return p[:, : q.shape[1]].minimum(q).sum(-1)


def shuffle_head(head: Head) -> Head:
    """Return a head whose floating-point matrices have their numbers in a random, seeded order."""
    draw = torch.Generator().manual_seed(0)

    def shuffled(tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or not tensor.is_floating_point():
            return tensor
        order = torch.randperm(tensor.numel(), generator=draw).to(tensor.device)
        return tensor.flatten()[order].view_as(tensor)

    tensors = {name: shuffled(tensor) for name, tensor in head.tensors.items()}
    return replace(head, tensors=tensors, kept={})


def damage(head: Head, score: Callable[[Head], WiringScore]) -> Iterator[str]:
    """Yield a sentence for each matrix of a dead head that is constant, or that a repair revives.

    `score` scores copies of the head in which one matrix is repaired, in each way of `repairs`.
    """
    before = score(head)
    for parameter, tensor in [*head.tensors.items()]:
        name = head.names.get(parameter, parameter)
        if tensor.ndim != 2 or not tensor.is_floating_point():
            continue
        if bool(tensor.amin() == tensor.amax()):
            yield f"{name} is constant"
            continue
        for what, repaired in repairs(tensor):
            after = score(replace(head, tensors={**head.tensors, parameter: repaired}, kept={}))
            if after.accepted > before.accepted + ALIVE and after.beats(before):
                yield f"{name} accepts {after.accepted:.2f} {what}"


def repairs(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield (words, new tensor): a matrix transposed if square, halves of even axes exchanged."""
    rows, columns = tensor.shape
    if rows == columns:
        yield "transposed", tensor.T.contiguous()
    if rows % 2 == 0:
        yield "with its halves of rows exchanged", tensor.roll(rows // 2, 0)
    if columns % 2 == 0:
        yield "with its halves of columns exchanged", tensor.roll(columns // 2, 1)
