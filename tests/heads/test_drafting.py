"""What a head drafts from, round by round: as if all were computed anew from the text.

The shipping loop runs over an engine's session; at each round every law of the draft is compared
with `stage.scratch`, which has no cache and takes the target's features for the whole text.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from spsbench.engines.choice import prepared
from spsbench.engines.eager import EagerLM
from spsbench.engines.fast import Fast
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Draft, Drafter, GoOn, Limits, Noise, Scores
from spsbench.methods.heads.drafting import HeadDrafter
from spsbench.methods.schedules.constant import Constant
from spsbench.methods.verifiers.sps import Sps
from tests.heads import writers
from tests.heads.stage import HeadSite, Known, scratch
from tests.tiny_models import tiny

VOCAB, TOKENS, K = 12, 16, 3
PROMPT = [1, 5, 3, 7]
WARP = Warp(1.0, 0, 0.95)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny("llama", vocab=VOCAB, num_hidden_layers=6, scale=1.0)


@pytest.fixture(scope="module")
def sites(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, HeadSite]:
    folder = tmp_path_factory.mktemp("heads")
    made = {
        "eagle": writers.eagle(folder / "eagle", target),
        "eagle3": writers.eagle3(folder / "eagle3", target),
        "3.1": writers.speculators(folder / "s", target, layers=2, norm_output=True, fc_norm=True),
    }
    return {name: HeadSite(path, target) for name, path in made.items()}


class Compared(Drafter):
    """A drafter whose laws are compared with those from scratch."""

    def __init__(self, drafter: HeadDrafter, laws: Callable[..., Tensor]) -> None:
        self._drafter, self._laws = drafter, laws
        self.drawn, self.tree, self.layers = drafter.drawn, drafter.tree, drafter.layers
        self.worst, self.seen = 0.0, 0

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._drafter.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        draft = self._drafter.draft(context, k, noise, go_on)
        tokens = tuple(draft.tokens.tolist())
        for i in range(len(tokens)):
            expected = self._laws(tuple(context.tokens), tokens[:i])
            self.worst = max(self.worst, float((draft.probs[i] - expected).abs().max()))
            self.seen += 1
        return draft


def compared(
    site: HeadSite, target: Any, spoil: Callable[[HeadDrafter], None], engine: Any = EagerLM
) -> Compared:
    plain = site.drafter()
    laws = scratch(plain, Known(target, plain.layers), WARP)
    drafter = site.drafter()
    spoil(drafter)
    watched = Compared(drafter, laws)
    rounds = decode(
        PROMPT,
        target=engine(target, layers=watched.layers),
        drafter=watched,
        verifier=Sps(),
        schedule=Constant(K),
        warp=WARP,
        noise=PhiloxStream(1),
        limits=Limits(TOKENS),
    )
    accepted = {turn.accepted for turn in rounds}
    assert {0} < accepted, "nothing or everything was kept"
    return watched


def sound(drafter: HeadDrafter) -> None:
    """Nothing is planted."""


@pytest.mark.parametrize("head", ["eagle", "eagle3", "3.1"])
def test_every_law_is_as_from_scratch(sites: dict[str, HeadSite], target: Any, head: str) -> None:
    seen = compared(sites[head], target, sound)
    assert seen.seen > TOKENS
    assert seen.worst < 1e-12


def another_layer(drafter: HeadDrafter) -> None:
    drafter.layers = tuple(layer - 1 for layer in drafter.layers)


def embedding_not_shifted(drafter: HeadDrafter) -> None:
    take, held = drafter._take, {"last": PROMPT[0]}

    def wrong(hidden: Sequence[Tensor], tokens: Sequence[int]) -> None:
        shifted = [held["last"], *tokens[:-1]]
        held["last"] = tokens[-1]
        take(hidden, shifted)

    drafter._take = wrong


def guesses_kept(drafter: HeadDrafter) -> None:
    """The head's own features stay for what was accepted; only the newest row is read."""
    keep = drafter._cache.keep

    def wrong(context: Context) -> None:
        new = len(context.tokens) - 1 - drafter._read
        if new > 0 and context.last is not None:
            guessed = min(new - 1, len(context.last.draft.tokens) - 1)
            drafter._read += guessed
            keep(drafter._read)
            hidden = [context.last.scores.hidden[n][guessed:new] for n in drafter.layers]
            drafter._take(hidden, context.tokens[-new + guessed :])

    drafter._catch_up = wrong
    drafter._cache.keep = lambda length, rows=(): keep(0) if length == 0 else None


def rejected_rows_kept(drafter: HeadDrafter) -> None:
    """What was drafted in vain stays in the cache, where later rows see it."""
    keep = drafter._cache.keep
    drafter._cache.keep = lambda length, rows=(): keep(0) if length == 0 else None
    whole = drafter._pass

    def wide(features: Tensor, tokens: Tensor, start: int) -> Tensor:
        layers = drafter._cache.layers
        held = layers[0].length if layers else 0
        return whole(features, tokens, held)

    drafter._pass = wide


def row_of_another(drafter: HeadDrafter) -> None:
    """The features of the row after the one that was kept."""
    catch = drafter._catch_up

    def wrong(context: Context) -> None:
        last = context.last
        if last is not None:
            hidden = {n: states.roll(-1, 0) for n, states in last.scores.hidden.items()}
            context = context._replace(
                last=last._replace(scores=Scores(last.scores.logits, hidden))
            )
        catch(context)

    drafter._catch_up = wrong


def place_stands_still(drafter: HeadDrafter) -> None:
    guess = drafter._guess
    step = drafter.network.step

    def wrong(state: Any, token: Tensor, depth: int) -> Tensor:
        drafter.network.step = lambda f, e, p, c, s: step(f, e, p - depth, c, s)
        made = guess(state, token, depth)
        del drafter.network.step
        return made

    drafter._guess = wrong


def offsets_as_ids(drafter: HeadDrafter) -> None:
    ids = drafter.network.ids
    drafter.network.ids = ids - torch.arange(len(ids))


FAULTS = (another_layer, embedding_not_shifted, guesses_kept, rejected_rows_kept, row_of_another)


@pytest.mark.parametrize("fault", [*FAULTS, place_stands_still], ids=lambda fault: fault.__name__)
def test_planted_faults_are_seen(sites: dict[str, HeadSite], target: Any, fault: Any) -> None:
    assert compared(sites["eagle"], target, fault).worst > 1e-6


def test_offsets_taken_for_ids_are_seen(sites: dict[str, HeadSite], target: Any) -> None:
    site = sites["eagle3"]
    kept = site.drafter().network.ids
    try:
        assert compared(site, target, offsets_as_ids).worst > 1e-6
    finally:
        site.drafter().network.ids = kept


@pytest.mark.parametrize("head", ["eagle", "eagle3"])
def test_the_fast_engine_gives_hidden_states_inside_its_replays(
    sites: dict[str, HeadSite], target: Any, head: str
) -> None:
    model = tiny("llama", vocab=VOCAB, num_hidden_layers=6, scale=1.0)
    engine = Fast()
    engine.prepare(model, threads=1)
    tape = prepared(model).tape
    seen = compared(
        sites[head], target, sound, lambda m, layers: engine.session(model, layers=layers)
    )
    assert seen.worst < 1e-9
    assert tape.refused is None
    assert any(replayed is not None for replayed in tape.traces.values())
