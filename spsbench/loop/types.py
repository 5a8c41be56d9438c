"""The nouns of the loop and the protocols of its parts (Chen et al. 2023, arXiv 2302.01318).

Letters are the paper's: **q is the target's law, p the draft's** (Leviathan et al. swap them and
write gamma for K). Shapes: V the target's vocabulary, N drafted tokens, m tokens fed, D width.
Laws are float32 (float64 when the logits are), tokens int64. One sequence at a time: no batch axis.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from spsbench.loop.drafter_context import DrafterContext as DrafterContext
from spsbench.loop.drafter_context import Drawn as Drawn
from spsbench.loop.drafter_context import Plan as Plan
from spsbench.loop.drafter_context import Weights as Weights
from spsbench.loop.sampling import send
from spsbench.settings.records import DraftLaws
from spsbench.settings.records import TreeRound as TreeRound

Site = DrafterContext  # the former name, for plug-ins

Finish = Literal["eos", "stop", "length", "context"]
"""Why a generation ended: an EOS id, a stop string, its own budget, the target's context limit."""

GoOn = Callable[[Tensor], Tensor]
"""[V] the law of the *next* slot, before its token is drawn -> [] bool: draft that slot too?

At temperature 0, where every law is one-hot, it is given `sampling.unsharpened` instead.
"""

Stop = Callable[[Sequence[int]], bool]
"""The generated tokens so far -> is a stop string complete? Called once for each new token."""


class Guarantee(Enum):
    """What a verifier promises of the output's law."""

    EXACT = "exact"
    GREEDY = "greedy-exact"  # exact at temperature 0 only
    LOSSY = "lossy"


class Purpose(IntEnum):
    """What a uniform is used for. Each purpose is a stream of its own, so no draw is used twice."""

    DRAFT = 0  # a drafted token
    ACCEPT = 1  # an acceptance test
    FINAL = 2  # the recovered or bonus token
    PLAIN = 3  # a token of the target's own, drawn before the draft is looked at


@dataclass(frozen=True, slots=True)
class Draft:
    """N drafted tokens: a chain, or a tree when `parents` is given.

    `probs` row i is the law that token i was really drawn from (before its siblings were removed);
    None means that the tokens came by rule (`Drawn.POINT`). Siblings stand in the order in which
    they were drawn. How they were drawn a drafter says once, in its own `drawn`: the loop writes it
    on each draft.
    """

    tokens: Tensor  # [N]
    probs: Tensor | None  # [N, V]
    parents: Tensor | None = None  # [N] on the host; parent of node i, -1 = the context
    drawn: Drawn = Drawn.IID  # how siblings were drawn

    def within(self, nodes: int | None) -> "Draft":
        """The draft itself, or the first `nodes` of a tree that has more; None = any number.

        Exact as long as a node's place in the order is settled before its token is drawn: whether
        it is verified then depends on the nodes before it, never on its own value.
        """
        if self.parents is None or nodes is None or len(self.tokens) <= nodes:
            return self
        probs = None if self.probs is None else self.probs[:nodes]
        return Draft(self.tokens[:nodes], probs, self.parents[:nodes], self.drawn)

    def to(self, device: torch.device) -> "Draft":
        """The same draft on `device`; a tree's shape stays on the host, where rules plan by it."""
        probs = None if self.probs is None else send(self.probs, device)
        return Draft(send(self.tokens, device), probs, self.parents, self.drawn)


class Scores(NamedTuple):
    """What one pass of a model returns."""

    logits: Tensor  # [keep, V] of the last `keep` tokens fed; its device is the model's
    hidden: Mapping[int, Tensor]  # layer -> [m, D], the layers that were asked for
    experts: float | None = None  # distinct ones that a layer of experts took; None = not counted


class Verdict(NamedTuple):
    """A verifier's ruling. It stays on the device, so that one read fetches all of it."""

    path: Tensor  # [N] accepted nodes from root to leaf, padded with -1
    token: Tensor  # [] recovered after a rejection, bonus when all were accepted
    tested: Tensor  # [] draft tokens the rule looked at, in a tree depths; -1 when it does not
    # test one by one


class Step(NamedTuple):
    """The last round as a drafter may see it: what was fed, and what became of it."""

    draft: Draft
    scores: Scores
    verdict: Verdict
    kept: Sequence[int] = ()  # nodes whose tokens are in the text now, on the host


class Context(NamedTuple):
    """All that a drafter may know."""

    tokens: Sequence[int]  # prompt and output so far; the newest is not in any cache yet
    warp: Callable[[Tensor], Tensor]  # [N, V] logits -> laws, the target's own warp
    last: Step | None
    nodes: int | None = None  # the most a tree may have; of a larger one the first are taken


class Along(NamedTuple):
    """Laws of a draft along a text."""

    laws: Tensor  # [n, V]
    sure: Tensor  # [n, V] the same, but at temperature 0 the laws at 1: they tell how sure it is


class Round(NamedTuple):
    """Measurements of one turn of the loop, on the host. Counts are taken before the cut."""

    drafted: int  # N
    tested: int  # draft tokens the rule looked at, in a tree depths; -1 = not applicable
    accepted: int  # a, 0 <= a <= N
    tokens: list[int]  # emitted: the accepted prefix and the final token, after the cut
    overlap: float | None  # sum over tested slots of sum_x min(p, q); None = not applicable
    seconds: float  # wall time of the round; the prefill is not in it
    finish: Finish | None
    laws: DraftLaws | None = None  # if they were asked for
    tree: TreeRound | None = None  # None = a chain
    processor: float | None = None  # processor seconds of all threads; None = not measured
    experts: float | None = None  # that a layer of the target's took for this pass: see `Scores`

    @property
    def depth(self) -> int:
        """Tokens on the longest drafted path; of a chain all of them."""
        return self.drafted if self.tree is None else self.tree.depth

    @property
    def full(self) -> bool:
        """Whether nothing was drafted after what was kept: the final token is a bonus."""
        return self.accepted == self.drafted if self.tree is None else not self.tree.offered[-1]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a generation must end."""

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
        """Tokens in the cache."""

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed `tokens` [m] and return the logits of the last `keep`.

        With `parents` [N] the last N tokens are tree nodes (-1 = the last token before them). They
        may be more than are fed: then the first N - m are in the cache already, from passes since
        the last `commit`, so that a tree can grow by a pass a depth. No token at all is allowed
        and runs nothing.
        """

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep the first `length` tokens of the cache; of tree nodes after them those on `path`."""


class Engine(Protocol):
    """How a model is run."""

    @abstractmethod
    def session(
        self, model: Any, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        """A session with a prepared model: its own cache over shared weights.

        Args:
            model: a transformers model in eval mode, on its device.
            vocab_size: rows of the logits that are tokens; default: all.
            layers: hidden states to return, as transformers numbers them (0 = the embeddings).
        """

    @abstractmethod
    def prepare(
        self, model: Any, *, known: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any] | None:
        """Do once, in place, what all sessions over `model` need; what was chosen, ready for JSON.

        Args:
            model: a model that no other engine shares.
            known: what an earlier call chose; nothing is measured again then.
            threads: what the user asked for; None = free to choose.

        Raises:
            UnsupportedModelError: (of `engines.eager`, whose `check_rollback` is for this) a trial
                shows that no session can run it. To make it is the duty of the engine.
        """


class Noise(Protocol):
    """The randomness of one round: every draw names its purpose, its position is its slot."""

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] float64 in [0, 1); slot i is the same number whatever n is.

        On the CPU or where the target's laws are; `sampling.sample` takes either.
        """


class NoiseStream(Protocol):
    """The randomness of one generation."""

    def round(self, index: int) -> Noise:
        """Fresh noise for round `index` (invariant: never keyed by position)."""


class Drafter(Protocol):
    """Proposes tokens. Subclass it explicitly to inherit the defaults.

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
    shape: tuple[int, ...] | None = None  # of a drawn tree: slot i of DRAFT draws a child of that
    limit: int | None = None  # longest context it can draft in; beyond it the target goes on alone

    @classmethod
    def plan(cls, *args: Any, **arguments: Any) -> Plan:
        """What these arguments mean; cheap, and before anything is loaded."""
        return Plan(cls.drawn, cls.tree, cls.weights, cls.uses_target, cls.translates)

    @classmethod
    def open(cls, context: DrafterContext, *args: Any, **arguments: Any) -> Self:
        """Make one from what its plan asked for; its parameters are the spec's arguments."""
        return cls(*args, **arguments)

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Start on a new prompt; `prefill` holds the target's hidden states of `prompt[:-1]`."""

    @abstractmethod
    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """At most `k` tokens deep, fewer or none is fine; what stops it may look at laws only.

        A tree has at most `context.nodes` nodes.
        """

    def along(
        self, tokens: Sequence[int], begin: int, warp: Callable[[Tensor], Tensor]
    ) -> Along | None:
        """The laws that each of `tokens[begin:]` would be drawn from after those before it.

        None: there are no such laws, or they depend on more than the text. Asked piece by piece
        along a finished text, after `begin` on its prompt; `begin` is 1 or more.
        """
        return None


class Verifier(Protocol):
    """The acceptance rule: a pure function of draft, target laws and noise."""

    guarantee: ClassVar[Guarantee]

    @abstractmethod
    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Why this pairing would be silently wrong, else None."""

    @abstractmethod
    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """`q` [N+1, V]: row 0 follows the context, row i+1 follows node i."""


class Schedule(Protocol):
    """Chooses K for the next round. Subclass it explicitly to inherit the defaults."""

    @abstractmethod
    def k(self, history: Sequence[Round]) -> int:
        """Tokens to draft next; may depend on the past, never on the draft itself."""

    def go_on(self, p: Tensor) -> Tensor:
        """[V] law of the next slot -> [] bool, asked before that slot's token is drawn.

        Always, if a schedule does not say; on the CPU, so that asking does not wait for `p`.
        """
        return torch.ones((), dtype=torch.bool)

    def nodes(self, history: Sequence[Round]) -> int | None:
        """Nodes of the next tree at most, K being its depth; None = as many as its drafter likes.

        A schedule need not have it.
        """
        return None
