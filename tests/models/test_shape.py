"""Drafts of other shapes: the target's kind and vocabulary, another width and depth."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import spsbench
from spsbench.errors import UsageError
from spsbench.models.shape import DEPTH, WIDTH, first_size, text_config, with_shape
from spsbench.settings.grid import make_request
from spsbench.settings.models import Shape, parse_shape
from tests.oracles.models import ARCHITECTURES, config


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "mistral"])
@pytest.mark.parametrize("shape", [Shape(16, 5), Shape(72, 1), Shape(8, 2)])
def test_every_kind_takes_another_shape(architecture, shape, tmp_path):
    made = with_shape(text_config(config(architecture, 50, 64)), shape)
    (tmp_path / "config.json").write_text(json.dumps(made))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert [first_size(text_config(model.config), names) for names in (WIDTH, DEPTH)] == [*shape]
    assert model.config.vocab_size == 50
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 50)


def test_heads_keep_their_width_and_are_shared_alike():
    values = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "head_dim": 64,
        "layer_types": ["full", "sliding"] * 15,
        "auto_map": {"a": "b"},
    }
    made = with_shape(values, Shape(384, 3))
    assert (made["num_attention_heads"], made["num_key_value_heads"]) == (6, 2)
    assert (made["head_dim"], made["intermediate_size"]) == (64, 1024)
    assert made["layer_types"] == ["full", "sliding", "full"]
    assert "auto_map" not in made


def test_a_configuration_without_a_width_is_refused():
    with pytest.raises(UsageError):
        with_shape({"model_type": "odd"}, Shape(8, 1))


@pytest.mark.parametrize(
    "text", ["", "256", "256x", "x4", "0x4", "256x0", "-8x2", "12x2", "99999x2", "8x257", "8x2x2"]
)
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(UsageError):
        parse_shape(f"shape:{text}")


def test_a_shape_is_a_draft_of_random_weights_run_as_its_target():
    draft = make_request(draft="shape:64x2", dtype="float64", engine="eager").draft
    assert (draft.id, draft.random, draft.dtype) == ("shape:64x2:nano", True, "float64")
    assert make_request(draft=draft.id, dtype="float64", engine="eager").draft == draft
    assert parse_shape(draft.id) == (Shape(64, 2), "nano")
    with pytest.raises(UsageError):
        make_request(draft="shape:64x2", draft_weights="int8")


def test_a_draft_of_a_shape_leaves_the_greedy_text_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"temperature": 0.0, "max_new_tokens": 12, "engine": "eager"}
    pair = spsbench.load(target="nano", draft="shape:16x3", k=3, **options)
    generation = pair.generate("def f(")
    assert (pair.loaded.draft.config.hidden_size, len(pair.loaded.draft.model.layers)) == (16, 3)
    assert generation.text == pair.generate("def f(", k=0).text
    assert any(r.drafted == 3 for r in generation.record.rounds)
