"""A text does not depend on its neighbours: the same alone and in a batch, bit for bit where all
layers run in own kernels, within rounding elsewhere. Defects of a common pass are planted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.engines.eager import EagerLM, attends_each
from spsbench.engines.session.joint import JointCache
from spsbench.engines.session.session import FastLM
from spsbench.loop import decode as loop
from spsbench.loop.types import Limits, Scores
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.verifiers.sps import Sps
from tests.oracles.batches import METHODS, Open, same, texts
from tests.oracles.models import ARCHITECTURES, WINDOWED, tiny

VOCAB = 12


@pytest.fixture(scope="module")
def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    return tiny("llama"), tiny("llama", noise=0.1)


@pytest.mark.parametrize(
    ("session", "method"),
    [
        pytest.param(
            kind, method, marks=() if kind is FastLM or method == "sps" else pytest.mark.slow
        )
        for kind in (FastLM, EagerLM)
        for method in METHODS
    ],
)
def test_a_text_is_the_same_alone_and_in_any_batch(pair: Any, session: Open, method: str) -> None:
    how = {"method": method, "models": pair, "session": session}
    alone = texts(0, **how)
    for size, continuous in (2, True), (3, False), (5, False):
        assert same(texts(size, continuous, **how), alone, 1e-9)


def test_an_eos_inside_an_accepted_run_ends_its_row_alone(pair: Any) -> None:
    how: dict[str, Any] = {"method": "sps", "models": pair, "session": FastLM}
    number, eos = next(
        (number, r.tokens[0])
        for number, rounds in enumerate(texts(0, **how))
        for r in rounds[1:]
        if r.accepted > 1
    )
    alone, together = texts(0, eos=eos, **how), texts(5, eos=eos, **how)
    assert same(together, alone, 1e-9)
    assert together[number][-1].finish == "eos"
    assert len({len(rounds) for rounds in together}) > 1


QUICK = "gpt2", "mistral", "gemma2"


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (*ARCHITECTURES[1:], *WINDOWED)
    ],
)
def test_every_architecture_makes_common_passes(architecture: str) -> None:
    asked: dict[str, Any] = dict(WINDOWED.get(architecture, {}))
    within = 1e-9
    if architecture in WINDOWED:
        asked["sliding_window"] = 4
    if architecture in ("gemma2", "gpt_oss"):
        asked |= {"attention": "eager"}
        within = 1e-4
    if architecture == "gpt_oss":
        asked["dtype"] = torch.float32
    models = tiny(architecture, **asked), tiny(architecture, noise=0.1, **asked)
    for kind in EagerLM, FastLM:
        assert attends_each(models[0], kind)
        how: dict[str, Any] = {"method": "sps", "models": models, "session": kind}
        assert same(texts(5, **how), texts(0, **how), within)


class Unshifted(FastLM):
    """Counts positions on over rejected tokens."""

    def _positions(self, m: int, parents: Tensor | None) -> Tensor:
        self._fed = getattr(self, "_fed", 0) if self.length else 0
        self._fed += m
        return torch.arange(self._fed - m, self._fed)


class LeftOpen(FastLM):
    """Leaves a rejected token where attention sees it."""

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        super().commit(min(self.length - len(path or ()), length + (length > 0)), path)


class CountsTheBonus(FastLM):
    """Counts the bonus token as cached, before any pass has made its keys and values."""

    def _positions(self, m: int, parents: Tensor | None) -> Tensor:
        return super()._positions(m, parents) + int(self.length > 12)


class WrittenOver(FastLM):
    """A place in which the text that ended there still writes."""

    ended: ClassVar[list[Any]] = []

    @torch.inference_mode()
    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        made = super().append(tokens, keep, parents)
        if keep == 0 and self.length:
            for mine, other in zip(
                self._cache.layers, self.ended[-1:] or [self._cache], strict=False
            ):
                mine.keys[:, :, 0] = other.layers[0].keys[:, :, 0]
            self.ended.append(self._cache)
        return made


class MissesTheLast(ModelDrafter):
    """After full acceptance, feeds the newest token alone: the one before it is never cached."""

    def draft(self, context: Any, *rest: Any) -> Any:
        lm = self.lm
        lm.commit(min(lm.length, len(context.tokens) - 1))
        if len(context.tokens) - lm.length == 2:
            lm.append(torch.tensor([0]), keep=0)
        return super().draft(context, *rest)


class FromNeighbour(ModelDrafter):
    """Hands on the law of a neighbour's draft, as after rows were put into another order."""

    laws: ClassVar[list[Tensor]] = []

    def draft(self, *given: Any) -> Any:
        made = super().draft(*given)
        if made.probs is None:
            return made
        self.laws.append(made.probs)
        other = self.laws[-2:][0]
        return replace(made, probs=other) if other.shape == made.probs.shape else made


class OneStream:
    """Noise that rows take from one generator, in the order in which they come."""

    made = torch.Generator().manual_seed(0)

    def __init__(self, seed: int) -> None: ...

    def round(self, index: int) -> "OneStream":
        return self

    def uniform(self, purpose: Any, n: int) -> Tensor:
        return torch.rand(n, dtype=torch.float64, generator=self.made)


def from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text reads the keys and values of the one after it."""
    plain = JointCache.update

    def update(self: JointCache, *given: Any) -> Any:
        made = plain(self, *given)
        rows = self._read
        widths = [keys.shape[2] for keys, _, _ in rows]
        other = [rows[(i + 1) % len(rows)] for i in range(len(rows))]
        self._read = [
            (keys[:, :, :n], values[:, :, :n], mask) if keys.shape[2] >= n else own
            for (keys, values, _), (own, mask, n) in zip(
                other, ((row, row[2], n) for row, n in zip(rows, widths, strict=True)), strict=True
            )
        ]
        return made

    monkeypatch.setattr(JointCache, "update", update)


def only_the_last_eos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for an EOS in a round's final token alone."""
    plain = loop.cut

    def cut(block: list[int], output: list[int], limits: Limits, *rest: Any) -> Any:
        inner = [t for t in block[:-1] if t in limits.eos]
        return plain(block, output, Limits(limits.max_new_tokens) if inner else limits, *rest)

    monkeypatch.setattr(loop, "cut", cut)


def of_class(kind: type[FastLM]) -> Callable[[Any], type[FastLM]]:
    return lambda monkeypatch: kind


def drafted_by(kind: type[ModelDrafter]) -> Callable[[Any], None]:
    return lambda monkeypatch: monkeypatch.setitem(METHODS, "sps", (kind, Sps()))


def one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.oracles.batches.PhiloxStream", OneStream)


DEFECTS: dict[str, Callable[[Any], type[FastLM] | None]] = {
    "positions count rejected tokens": of_class(Unshifted),
    "the mask is open over a rejected tail": of_class(LeftOpen),
    "the bonus token counts as cached": of_class(CountsTheBonus),
    "a text that has ended still writes": of_class(WrittenOver),
    "keys and values of a neighbour": from_the_next,
    "a draft's cache misses its last token": drafted_by(MissesTheLast),
    "the draft law of a neighbour": drafted_by(FromNeighbour),
    "one stream of noise for all rows": one_stream,
    "an EOS inside an accepted run": only_the_last_eos,
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_change_a_text(
    pair: Any, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    how: dict[str, Any] = {"method": "sps", "models": pair, "session": FastLM}
    alone = texts(0, **how)
    assert all(attends_each(model, FastLM) for model in pair)  # a later trial would find a defect
    if kind := DEFECTS[defect](monkeypatch):
        how["session"] = lambda model: (kind if model is pair[0] else FastLM)(model)
    assert not same(texts(3, continuous=True, **how), alone, 1e-9)
