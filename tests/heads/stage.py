"""A head over a tiny target, without the command line: its site, its distributions, its walk."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.audit.exact.cases import Case, Facts
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.enumeration import Proof, prove
from spsbench.engines.eager import EagerLM
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.heads.falcon import FalconNetwork
from spsbench.heads.families import family_in
from spsbench.heads.files import open_files
from spsbench.heads.head import Head, read_head, read_tensors
from spsbench.heads.network import ParallelNetwork, Target
from spsbench.loop.drafter_context import TargetParts, alone
from spsbench.loop.sampling import Warp
from spsbench.loop.types import LM, Drafter, Purpose, Scores, Verifier
from spsbench.methods.drafters.shaped import parents_of
from spsbench.plugins import make
from spsbench.settings.models import DEFAULT_HEAD
from spsbench.spec import Spec
from tests.variants import first

KINDS = sorted(kind for target, kind in DEFAULT_HEAD if target == "nano")
TEXT = "def fibonacci(n):\n"
FIRST = first(1, KINDS)


class HeadSite:
    def __init__(self, folder: Path, model: PreTrainedModel, **answers: Any) -> None:
        found = read_head(
            folder,
            model.config.to_dict(),
            names=("tiny", "head"),
            drafter=family_in(open_files(folder)).name,
            overrides=answers,
            allow_pickle=True,
        )
        tensors = {
            own: (tensor.to(model.dtype) if tensor.is_floating_point() else tensor).to(model.device)
            for own, tensor in read_tensors(found).items()
        }
        self._head, self._model, self._answers = replace(found, tensors=tensors), model, answers
        self.vocab_size = model.config.vocab_size
        self.tokenizer = None
        self._made: Any = None

    def head(self) -> Head:
        return self._head

    def network(self, make: Callable[[], Any]) -> Any:
        self._made = self._made or make()
        return self._made

    def target(self) -> TargetParts:
        return TargetParts.of(self._model, self.vocab_size)

    def cache(self, most: int | None = None) -> Any:
        return PreallocatedCache(most)

    together = staticmethod(alone)

    def drafter(self, **more: Any) -> Drafter:
        """A new drafter over the one network."""
        given = tuple({**self._answers, **more}.items())
        return make("drafters", Spec(self._head.family, given), self)


class Known:
    """What a target says of each prefix: computed once, without a cache."""

    def __init__(self, model: PreTrainedModel, layers: tuple[int, ...]) -> None:
        self.model, self.layers = model, layers
        self._rows: dict[tuple[int, ...], tuple[Tensor, Mapping[int, Tensor]]] = {}

    @torch.inference_mode()
    def row(self, prefix: tuple[int, ...]) -> tuple[Tensor, Mapping[int, Tensor]]:
        """[V] logits after a prefix, and the [D] hidden states of its last token."""
        if prefix not in self._rows:
            out = self.model(
                input_ids=torch.tensor([prefix]), use_cache=False, output_hidden_states=True
            )
            states = {layer: out.hidden_states[layer][0, -1] for layer in self.layers}
            self._rows[prefix] = out.logits[0, -1], states
        return self._rows[prefix]

    def q(self, prefix: tuple[int, ...]) -> tuple[float, ...]:
        """The target's distribution, before the warp."""
        return tuple(self.row(prefix)[0].softmax(-1).tolist())

    def hidden(self, prefix: tuple[int, ...]) -> list[Tensor]:
        """Of each layer the states [n, D] of every token of `prefix`."""
        rows = [self.row(prefix[: i + 1])[1] for i in range(len(prefix))]
        return [torch.stack([row[layer] for row in rows]) for layer in self.layers]

    def prefill(self, prompt: tuple[int, ...]) -> Scores:
        """What a drafter gets of the prompt."""
        hidden = self.hidden(prompt[:-1])
        return Scores(torch.empty(0), dict(zip(self.layers, hidden, strict=True)))


class KnownLM:
    limit = None

    def __init__(self, known: Known) -> None:
        self.vocab_size = known.model.config.vocab_size
        self._known, self._cache = known, []

    @property
    def length(self) -> int:
        return len(self._cache)

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        fed = tokens.tolist()
        n = 0 if parents is None else len(parents)
        base = self._cache[: len(self._cache)]
        paths: list[list[int]] = []
        for i, token in enumerate(fed):
            if i < len(fed) - n:
                base = [*base, token]
                paths.append(base)
            else:
                above = int(parents[i - (len(fed) - n)])
                before = base if above < 0 else paths[above + len(fed) - n]
                paths.append([*before, token])
        rows = [self._known.row(tuple(path)) for path in paths]
        self._paths, self._cache = paths, self._cache + fed
        none = torch.empty(0, self._known.model.config.hidden_size)
        hidden = {
            layer: torch.stack([states[layer] for _, states in rows]) if rows else none
            for layer in self._known.layers
        }
        kept = [logits for logits, _ in rows[len(rows) - keep :]]
        empty = torch.empty(0, self.vocab_size)
        return Scores(torch.stack(kept) if kept else empty, hidden)

    def commit(self, length: int, path: Any = None) -> None:
        if path:
            self._cache = list(self._paths[1 + path[-1]])
        else:
            self._cache = self._cache[:length]


def whole(network: Any, features: Tensor, tokens: Tensor, target: TargetParts) -> Tensor:
    """[m, H] of one pass over all [m, H] features and the [m] tokens after them."""
    m, embedded = len(tokens), network.embed(tokens, target.embed)
    places = network.rotary.rows(0, m, features.dtype)
    sees = torch.ones(m, m, dtype=torch.bool).tril()
    if (window := getattr(network.shape, "window", None)) is not None:
        sees = sees.triu(1 - window)
    made: Tensor = network.step(features, embedded, places, PreallocatedCache(None), sees)
    return made


def scratch(drafter: Any, known: Known, warp: Warp) -> Callable[..., Tensor]:
    """The head's probs [V] after a text and tokens drafted after it, all computed from scratch.

    Features are the target's for the text, and the head's own guesses after it; nothing is cached.
    """
    network, target = drafter._frontier.network, drafter._frontier._target
    ids = network.ids

    if isinstance(network, ParallelNetwork):
        return scratch_at_once(drafter, known, warp)
    if isinstance(network, FalconNetwork):
        return scratch_in_blocks(drafter, known, warp)

    @torch.inference_mode()
    def law(text: tuple[int, ...], drafted: tuple[int, ...]) -> Tensor:
        features = network.fuse(known.hidden(text[:-1]))
        tokens = list(text[1:])
        while True:
            out = whole(network, features, torch.tensor(tokens), target)
            done = len(tokens) - (len(text) - 1)
            if done == len(drafted):
                break
            features = torch.cat([features, out[-1:]])
            tokens.append(drafted[done])
        found = warp(network.scores(out[-1:], target.head))[0]
        if ids is None:
            return found
        return found.new_zeros(known.model.config.vocab_size).index_copy(0, ids, found)

    return law


def scratch_in_blocks(drafter: Any, known: Known, warp: Warp) -> Callable[..., Tensor]:
    """The same for a head that foretells k tokens a pass: each pass over all rows from nothing."""
    network, target = drafter._frontier.network, drafter._frontier._target
    k = network.block

    @torch.inference_mode()
    def law(text: tuple[int, ...], drafted: tuple[int, ...]) -> Tensor:
        features, tokens, left = known.hidden(text[:-1])[0], list(text[1:]), list(drafted)
        while True:
            embedded = network.embed(torch.tensor(tokens), target.embed)
            rows, _ = network.rows(features[:, None], embedded[:, None], network.start(1))
            places = torch.arange(len(rows))
            held = network.append_kv(rows[:, 0], places, PreallocatedCache(None))
            out = network.predict(rows[-k:, 0], places[-k:], held, None)
            if len(left) < k:
                break
            features, tokens, left = torch.cat([features, out]), tokens + left[:k], left[k:]
        found: Tensor = warp(network.scores(out[len(left)][None], target.head))[0]
        return found

    return law


def scratch_at_once(drafter: Any, known: Known, warp: Warp) -> Callable[..., Tensor]:
    """The same for a head that looks at the text once: all rows read at once, no state kept."""
    network, target = drafter._frontier.network, drafter._frontier._target

    @torch.inference_mode()
    def law(text: tuple[int, ...], drafted: tuple[int, ...]) -> Tensor:
        at_once = lambda name, call, *rows: call(*rows)  # noqa: E731
        cache = PreallocatedCache()
        by = Target(lambda ids: network.embed(ids, target.embed), target.head, cache, at_once)
        tokens = torch.tensor(text[1:])
        hidden = [states.to(target.dtype) for states in known.hidden(text[:-1])]
        newest = network.read(hidden, tokens, 0, by)
        seen = network.look(newest, tokens[-1], len(tokens), network.deepest, by)
        states = network.start(seen, tokens[-1], by)[None]
        for depth, token in enumerate(drafted):
            states = network.step(seen, depth, states, torch.tensor([token]), by)
        logits = network.scores(seen, len(drafted), states, by)
        if network.ids is not None:
            whole = logits.new_full((1, known.model.config.vocab_size), -torch.inf)
            logits = whole.index_copy(1, network.ids, logits)
        return warp(logits)[0]

    return law


def proof_of(
    verifier: Verifier,
    site: HeadSite,
    known: Known,
    *,
    real: bool = False,
    spoil: Callable[[Any], None] = lambda drafter: None,
    warp: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> Proof:
    """Walk every path of a small generation: with `real` caches, or what is known of the target.

    With an `automaton` among the fields of the case, the head's probs are masked, at temperature 1.
    """
    settings = dict(warp or {})
    automaton, start = fields.pop("automaton", None), len(fields.get("prompt", (0,)))
    shape = parents_of(more["shape"]) if "shape" in more else []
    site.constraint = None  # distributions from scratch are those of the head alone
    laws = scratch(site.drafter(), known, Warp(**settings))
    kept: dict[Any, list[float]] = {}

    def drawn(facts: Facts, slot: int) -> list[float]:
        above = shape[slot] if shape else slot - 1
        path: list[int] = []
        while above >= 0:
            path.insert(0, above)
            above = shape[above] if shape else above - 1
        key = facts.text, tuple(facts.picked[Purpose.DRAFT, i] for i in path)
        if key not in kept:
            kept[key] = laws(*key).tolist()
            if automaton is not None:
                kept[key] = masked(automaton, kept[key], (*facts.text[start:], *key[1]))
        law = list(kept[key])
        if more.get("siblings") == "distinct":
            for sibling in (i for i in range(slot) if shape[i] == shape[slot]):
                law[facts.picked[Purpose.DRAFT, sibling]] = 0.0
            total = sum(law)
            law = [x / total for x in law] if total > 0 else [1.0]
        return law

    def session(case: Case, text: list[int], target: bool) -> LM:
        return EagerLM(known.model, layers=known.layers) if real else KnownLM(known)

    q = known.q if automaton is None else automaton.constrained(known.q, start)

    def drafter(lm: LM) -> Drafter:
        made = site.drafter(**more)
        spoil(made)
        return made

    return prove(
        Case(
            verifier,
            DiscoveredRule(verifier, drawn),
            q,
            q,
            known.model.config.vocab_size,
            drafter=drafter,
            warp=settings,
            lm=session,
            constraint=None if automaton is None else automaton.constraint,
            **fields,
        )
    )


def masked(automaton: Any, law: list[float], output: tuple[int, ...]) -> list[float]:
    """Probs over the tokens that may follow `output`; as they are where none has a chance."""
    state = automaton.state(output)
    allowed = () if state is None else automaton.follows(state)
    total = sum(law[token] for token in allowed)
    if total == 0:
        return law
    return [x / total if token in allowed else 0.0 for token, x in enumerate(law)]


def with_frontier(kind: Any) -> Callable[[Any], None]:
    """Have a drafter draft by a frontier of another kind, over the same parts."""

    def spoil(drafter: Any) -> None:
        sound = drafter._frontier
        drafter._frontier = kind(sound.network, sound._target, sound._cache)
        drafter.layers = drafter._frontier.layers

    return spoil
