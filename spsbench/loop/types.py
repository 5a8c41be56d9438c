"""Types of the loop and protocols of its parts (Chen et al. 2023, arXiv 2302.01318).

Distributions are over the vocabulary. Letters are the paper's: **q is the target's distribution,
p the draft's** (Leviathan et al. swap them and write gamma for K). Shapes: V the target's
vocabulary, N drafted tokens, m tokens fed, D width. Probabilities are float32 (float64 when the
logits are), tokens int64. One sequence at a time: no batch axis.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from spsbench.loop.drafter_context import DrafterContext as DrafterContext
from spsbench.loop.drafter_context import Drawn as Drawn
from spsbench.loop.drafter_context import Plan as Plan
from spsbench.loop.drafter_context import Weights as Weights
from spsbench.loop.sampling import confidence_probs, send
from spsbench.loop.tree import Tree, tree_of
from spsbench.settings.records import DraftProbs
from spsbench.settings.records import TreeRound as TreeRound

Finish = Literal["eos", "stop", "length", "context"]
"""Why a generation ended: an EOS id, a stop string, its own budget, the target's context limit."""

GoOn = Callable[[Tensor], Tensor]
"""[V] probs of the *next* slot, before its token is drawn -> [] bool: draft that slot too?

Of a drafter that knows some tokens only they may be over those (`Drafter.known_ids`). At
temperature 0, where every row is one-hot, it is given `sampling.confidence_probs` instead.
"""

Stop = Callable[[Sequence[int]], bool]
"""The generated tokens so far -> is a stop string complete? Called once for each new token."""


class Guarantee(Enum):
    """A verifier's promise about the distribution of the output."""

    EXACT = "exact"
    GREEDY = "greedy-exact"  # exact at temperature 0 only
    LOSSY = "lossy"


class Purpose(IntEnum):
    """The use of a uniform. Each purpose has a stream of its own, so no number is used twice."""

    DRAFT = 0  # a drafted token
    ACCEPT = 1  # an acceptance test
    FINAL = 2  # the recovered or bonus token
    PLAIN = 3  # a token of the target's own, drawn before the draft is looked at


@dataclass(frozen=True, slots=True)
class Draft:
    """N drafted tokens: a chain, or a tree when `parents` is given.

    Row i of `probs` is the distribution that token i was drawn from (before its siblings were
    removed); None means that the tokens were chosen by rule (`Drawn.POINT`). Siblings are in the
    order in which they were drawn. A drafter declares how it draws once, in its own `drawn`: the
    loop copies that to each draft.
    """

    tokens: Tensor  # [N]
    probs: Tensor | None  # [N, V]
    parents: Tensor | None = None  # [N] on the host; parent of node i, -1 = the context
    drawn: Drawn = Drawn.IID  # how siblings were drawn
    scored_only: int = 0  # last nodes that the target scores for the drafter, never offered
    by_rule: bool = False  # a hybrid drafted by its rule, no model was asked

    @property
    def offered(self) -> "Draft":
        """Return the draft that the verifier sees: without the last `scored_only` nodes."""
        return self.within(len(self.tokens) - self.scored_only)

    @property
    def tree(self) -> Tree:
        """Return the shape of the draft; a chain is a tree of one child a node."""
        chain = range(-1, len(self.tokens) - 1)
        return tree_of(chain if self.parents is None else self.parents)

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """Return N + 1 tuples: the drafted tokens that lead to each row of the target's pass."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens.tolist(), self.tree.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        return paths

    def within(self, nodes: int | None) -> "Draft":
        """Return the draft, or the first `nodes` of a tree that has more; None: any number.

        A chain is never cut. Nodes that are cut off are taken from `scored_only` first. The cut is
        exact if a node's place in the order is fixed before its token is drawn: whether the node is
        verified then depends on earlier nodes, never on its own value.
        """
        if self.parents is None or nodes is None or len(self.tokens) <= nodes:
            return self
        return replace(
            self,
            tokens=self.tokens[:nodes],
            probs=None if self.probs is None else self.probs[:nodes],
            parents=self.parents[:nodes],
            scored_only=max(0, self.scored_only - (len(self.tokens) - nodes)),
        )

    def to(self, device: torch.device) -> "Draft":
        """Return a copy with tokens and probs on `device`; `parents` stays on the host."""
        probs = None if self.probs is None else send(self.probs, device)
        return replace(self, tokens=send(self.tokens, device), probs=probs)


class Scores(NamedTuple):
    """The results of one pass of a model."""

    logits: Tensor  # [keep, V] of the last `keep` tokens fed; its device is the model's
    hidden: Mapping[int, Tensor]  # layer -> [m, D], the layers that were asked for
    experts: float | None = None  # distinct ones that a layer of experts took; None = not counted


class Verdict(NamedTuple):
    """A verifier's decision. It stays on the device, so that one read fetches all of it."""

    path: Tensor  # [N] accepted nodes from root to leaf, padded with -1
    token: Tensor  # [] recovered after a rejection, bonus when all were accepted
    tested: Tensor  # [] draft tokens the rule looked at, in a tree depths; -1 when it does not
    # test one by one


class Step(NamedTuple):
    """The last round as a drafter may see it: the tokens fed, and the verdict on them."""

    draft: Draft
    scores: Scores
    verdict: Verdict
    kept: Sequence[int] = ()  # nodes whose tokens are in the text now, on the host


class Context(NamedTuple):
    """The information that a drafter may use."""

    tokens: Sequence[int]  # prompt and output so far; the newest is not in any cache yet
    warp: Callable[[Tensor], Tensor]  # [N, V] logits -> probs, as the target's are made
    last: Step | None
    nodes: int | None = None  # the most a tree may have; of a larger one the first are taken
    rule_k: int | None = None  # tokens that a hybrid may draft by its rule; None = K
    constraint: Any = None  # `loop.constraint.Constraint` of the text; None: any text may follow
    processors: Any = None  # `loop.processors.TextProcessors` of the text; None: logits are as made

    def fit(self, nodes: int) -> int:
        """Return `nodes`, or as many of them as a tree may have."""
        return nodes if self.nodes is None else min(nodes, self.nodes)


class Along(NamedTuple):
    """The distributions of a draft along a text."""

    probs: Tensor  # [n, V]
    sure: Tensor  # [n, V] the same, but at temperature 0 the probs at 1: they tell how sure it is


class Round(NamedTuple):
    """Measurements of one round of the loop, on the host. Counts precede the cut at a limit."""

    drafted: int  # N, with the nodes that are only scored; -1 = an engine does not tell
    tested: int  # draft tokens the rule looked at, in a tree depths; -1 = not applicable
    accepted: int  # a, 0 <= a <= N
    tokens: list[int]  # emitted: the accepted prefix and the final token, after the cut
    overlap: float | None  # sum over tested slots of sum_x min(p, q); None = not applicable
    seconds: float  # wall time of the round; the prefill is not in it
    finish: Finish | None
    probs: DraftProbs | None = None  # if they were asked for
    tree: TreeRound | None = None  # None = a chain
    processor_seconds: float | None = None  # processor time of all threads; None = not measured
    experts: float | None = None  # that a layer of the target's took for this pass: see `Scores`
    passes: int = 1  # the target's; more: only their sums are known; 0: the engine tells nothing
    text: str | None = None  # another engine's, where no tokenizer here decodes `tokens`
    size: int | None = None  # tokens emitted, where the engine tells no ids
    by_rule: bool = False  # a hybrid drafted by its rule; see `Draft`
    draft_seconds: float = 0.0  # seconds of drafting
    target_seconds: float = 0.0  # seconds of the target's pass and its rollback

    @property
    def emitted(self) -> int:
        """Return the number of tokens emitted, after the cut."""
        return len(self.tokens) if self.size is None else self.size

    @property
    def depth(self) -> int:
        """Return the number of tokens on the longest drafted path; of a chain, all of them."""
        return self.drafted if self.tree is None else self.tree.depth

    @property
    def full(self) -> bool:
        """Return whether the draft ends with the kept tokens: the final token is a bonus token."""
        return self.accepted == self.drafted if self.tree is None else not self.tree.offered[-1]


@dataclass(frozen=True, slots=True)
class Limits:
    """The conditions that end a generation."""

    max_new_tokens: int
    eos: frozenset[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}: expected 0 or more")


class LM(Protocol):
    """A session with a language model and its cache; the only mutable thing in a decode."""

    vocab_size: int
    limit: int | None  # longest context in tokens; None = unlimited

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed `tokens` [m], of any device; return logits of the last `keep`, hidden states of all.

        With `parents` [N] the last N tokens are tree nodes (-1 = the last token before them). N may
        exceed m: then the first N - m nodes are cached already, from passes since the last
        `commit`, so that a tree can grow by one pass for each depth. Feeding no token is allowed
        and runs nothing.
        """

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep the first `length` tokens of the cache; of tree nodes after them those on `path`."""


class Engine(Protocol):
    """A way to run a model."""

    @abstractmethod
    def session(
        self, model: Any, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        """Open a session with a prepared model: its own cache over shared weights.

        Args:
            model: a transformers model in eval mode, on its device.
            vocab_size: rows of the logits that are tokens; default: all.
            layers: hidden states to return, as transformers numbers them (0 = the embeddings).
        """

    @abstractmethod
    def prepare(
        self, model: Any, *, known: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any] | None:
        """Prepare `model` in place, once for all sessions; return any choices as JSON values.

        Args:
            model: a model that no other engine shares.
            known: what an earlier call returned: its choices are made again without a measurement.
            threads: the number of threads that the user asked for; None = free to choose.

        Raises:
            UnsupportedModelError: (of `engines.eager`, whose `check_rollback` makes the trial) no
                session can run the model. Each engine makes this trial itself.
        """


class Noise(Protocol):
    """The randomness of one round: each draw is addressed by its purpose and its slot."""

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] float64 in [0, 1); slot i is the same number whatever n is.

        The numbers are on the CPU or the device of the target's `q`: `sampling.sample` takes both.
        """


class NoiseStream(Protocol):
    """The randomness of one generation."""

    def round(self, index: int) -> Noise:
        """Return fresh noise for round `index` (invariant: never keyed by position)."""


class Drafter(Protocol):
    """The protocol that proposes tokens. Subclass it explicitly to inherit the defaults.

    `drawn`, `tree`, `weights`, `uses_target` and `translates` of the class are its plan; a class
    whose plan depends on its arguments has a `plan` of its own, and sets `drawn` and `tree`
    accordingly.
    """

    drawn: Drawn
    tree: bool = False  # may its drafts branch?
    weights: ClassVar[Weights] = Weights.NONE
    uses_target: ClassVar[bool] = False
    translates: ClassVar[bool] = False
    layers: tuple[int, ...] = ()  # hidden layers wanted from the target
    shape: tuple[int, ...] | None = None  # a drawn tree's: slot i of DRAFT draws a child of that
    limit: int | None = None  # longest context it can draft in; beyond it the target goes on alone
    text_alone: bool = True  # do drafts follow from the text, not from rounds, noise, K?
    known_ids: Tensor | None = None  # target's token of each entry of `go_on`'s probs; None = all

    @classmethod
    def plan(cls, *args: Any, **arguments: Any) -> Plan:
        """Return the plan for these arguments; cheap, and called before anything is loaded."""
        return Plan(cls.drawn, cls.tree, cls.weights, cls.uses_target, cls.translates)

    @classmethod
    def open(cls, context: DrafterContext, *args: Any, **arguments: Any) -> Self:
        """Make a drafter from the parts that its plan requests, `lm` first, and the arguments."""
        models = (context.session(),) if cls.weights is Weights.MODEL else ()
        return cls(*models, *args, **arguments)

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Start on a new prompt; `prefill` holds the target's hidden states of `prompt[:-1]`."""

    @abstractmethod
    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft at most `k` tokens deep, fewer or none; stopping may depend on distributions only.

        A tree has at most `context.nodes` nodes.
        """

    def along(
        self, tokens: Sequence[int], begin: int, warp: Callable[[Tensor], Tensor]
    ) -> Along | None:
        """Return the distributions from which each of `tokens[begin:]` would be drawn in its place.

        None, the default: there are none, or they depend on more than the text. Called piece by
        piece along a finished text, after its own `begin`; the number `begin` is 1 or more.
        """
        return None


class Verifier(Protocol):
    """The acceptance rule: a pure function of draft, target distributions and noise."""

    guarantee: ClassVar[Guarantee]

    @abstractmethod
    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Return why this pairing would silently be wrong, else None."""

    @abstractmethod
    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a draft; row 0 of `q` [N+1, V] follows the context, row i+1 follows node i."""


@runtime_checkable
class Relaxing(Protocol):
    """A lossy verifier that is lenient at temperature 0, where a one-hot `q` leaves it nothing."""

    @abstractmethod
    def relax(self, draft: Draft, q: Tensor, sure: Tensor) -> Tensor:
        """Return the [N+1, V] probs to verify with, for one-hot `q` and the probs `sure` at 1."""


def always(p: Tensor) -> Tensor:
    """Return true: the `GoOn` of a schedule that never stops a draft."""
    return torch.ones((), dtype=torch.bool)


def continues(
    go_on: GoOn, warp: Callable[[Tensor], Tensor], logits: Tensor, probs: Tensor
) -> bool | Tensor:
    """Ask `go_on` whether to draft the slot of `logits` [V], whose `probs` are `warp(logits)`."""
    return go_on is always or go_on(confidence_probs(warp, logits, probs))


class Schedule(Protocol):
    """The protocol that chooses K for the next round. Subclass it explicitly for its defaults."""

    @abstractmethod
    def k(self, history: Sequence[Round]) -> int:
        """Return the number of tokens to draft next; it may use the past, never the draft."""

    def go_on(self, p: Tensor) -> Tensor:
        """Return [] bool, whether to draft a slot of probs `p` [V], before its token is drawn.

        The default is always true, on the CPU, so that the check does not wait for `p`.
        """
        return always(p)

    def nodes(self, history: Sequence[Round]) -> int | None:
        """Return the most nodes of the next tree, whose depth is K; None = as the drafter likes."""
        return None

    def rule_k(self, history: Sequence[Round]) -> int | None:
        """Return the tokens that a hybrid may draft next by its rule; None, the default: K.

        K is then that of its model alone, which costs a pass for each token, where tokens of a rule
        cost only rows of the target's pass. Drafters that are no hybrid do not read it.
        """
        return None
