"""Texts of a batch over packed models: the bits of a text alone, by programs of common passes."""

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from spsbench.engines.session import cache
from spsbench.engines.session.engine_config import engine_config_of, get_prepared
from spsbench.engines.session.joint import JointCache, TextLayers
from spsbench.extensions.cpu.fast import Fast
from tests.oracles.batches import METHODS, same, texts
from tests.oracles.models import tiny


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16]
)
def test_own_kernels_give_the_same_bits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FIRST", 8)  # each cache grows while the other texts wait
    wide = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "dtype": dtype}
    models = [copy.deepcopy(tiny("llama", noise=noise, **wide)) for noise in (0.0, 0.1)]
    engine = Fast()
    for model in models:
        engine.prepare(model, threads=1)
    if not engine_config_of(models[0]).row_bits:
        pytest.skip("not all layers run in own kernels here")
    for method in METHODS:
        how = {"method": method, "models": models, "session": engine.session}
        alone = texts(0, **how)
        assert same(texts(2, continuous=True, **how), alone)
        assert same(texts(5, **how), alone)
    assert joins_by_programs(models[0])


@pytest.mark.parametrize("architecture", ["mistral", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_layers_that_all_have_windows_are_replayed(architecture: str) -> None:
    wide: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    if architecture == "qwen2":
        wide |= {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}
    wide |= {"sliding_window": 4, "dtype": torch.float32}
    models = [copy.deepcopy(tiny(architecture, noise=noise, **wide)) for noise in (0.0, 0.1)]
    engine = Fast()
    for model in models:
        engine.prepare(model, threads=1)
    how: dict[str, Any] = {"method": "sps", "models": models, "session": engine.session}
    assert same(texts(5, **how), texts(0, **how), 1e-4)
    assert all(map(joins_by_programs, models))


def joins_by_programs(model: PreTrainedModel) -> bool:
    """Whether common passes ran programs, and no check found a difference."""
    replay: Any = get_prepared(model).replay
    return replay.refused is None and any(kind[0] is JointCache for kind in replay._agrees)


def test_a_program_that_reads_the_keys_of_a_neighbour_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "dtype": torch.bfloat16}
    models = [copy.deepcopy(tiny("llama", noise=noise, **wide)) for noise in (0.0, 0.1)]
    engine = Fast()
    for model in models:
        engine.prepare(model, threads=1)
    how: dict[str, Any] = {"method": "plain", "models": models, "session": engine.session}
    alone = texts(0, **how)
    places = TextLayers.addresses.fget
    monkeypatch.setattr(
        TextLayers, "addresses", property(lambda own: places(own)[3:] + places(own)[:3])
    )
    assert same(texts(5, **how), alone)
    assert "differs" in get_prepared(models[0]).replay.refused
