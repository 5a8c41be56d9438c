"""A text does not depend on its neighbours: the same alone and in a batch, bit for bit where all
layers run in own kernels, within rounding elsewhere.
"""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from spsbench.engines.eager import EagerLM, attends_each
from spsbench.engines.session.session import FastLM
from tests.oracles.batches import METHODS, Open, same, texts
from tests.oracles.models import ARCHITECTURES, WINDOWED, tiny


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


QUICK = "gpt2", "mistral"


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
