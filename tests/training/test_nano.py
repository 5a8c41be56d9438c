"""The whole recipe at toy size: it runs, resumes by skipping, and writes what loads."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spsbench.training.nano import data, distill, llama, recipe
from spsbench.training.nano.data import Mix
from spsbench.training.nano.figures import Sampling
from spsbench.training.nano.llama import LlamaShape
from spsbench.training.nano.pretrain import Stage


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(llama, "compile_layers", lambda: None)
    monkeypatch.setattr(distill, "compile_loss", lambda: None)
    monkeypatch.setattr(data, "library_texts", lambda split, *, pinned: [f"import {split}\n" * 300])
    monkeypatch.setattr(recipe, "VOCAB", 300)
    monkeypatch.setattr(recipe, "MIX", Mix(0, 30, 20))
    monkeypatch.setattr(recipe, "HELDOUT_MIX", Mix(0, 20, 0))
    monkeypatch.setattr(recipe, "TARGET", LlamaShape(2, 16, 24, 2, vocab=300, context=512))
    monkeypatch.setattr(recipe, "KEPT", (1,))
    stages = (Stage(1, 32, 128, 4), Stage(2, 64, 128, 4))
    monkeypatch.setattr(recipe, "PLAN", replace(recipe.PLAN, stages=stages, cooldown=512))
    short = replace(recipe.LESSONS[0], tokens=4 * 128, batch_tokens=128, length=32, cooldown=256)
    monkeypatch.setattr(recipe, "LESSONS", (short, replace(short, length=64)))
    monkeypatch.setattr(recipe, "OWN", Sampling(prompts=8, prompt=4, tokens=12))
    monkeypatch.setattr(recipe, "JUDGED", Sampling(prompts=4, prompt=8, tokens=8))


@pytest.mark.usefixtures("toy")
def test_recipe(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    recipe.build(tmp_path / "out", tmp_path / "work", scale=1.0, pinned=True)
    folder = tmp_path / "out" / "nano"
    weights = (folder / "model.safetensors").read_bytes()
    told = json.loads((folder / "training.json").read_text())
    assert told["facts"]["target_tokens"] == 8 * 128
    assert 0 < told["stdlib"]["forced"]["acceptance"] <= 1
    assert "alpha" in (tmp_path / "out" / "nano-draft" / "README.md").read_text()
    words = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.vocab_size == len(words) == 300
    assert caplog.records == []
    recipe.build(tmp_path / "out", tmp_path / "work", scale=1.0, pinned=True)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert json.loads((folder / "training.json").read_text()) == told


def test_scaled():
    plan = recipe.scaled(recipe.PLAN, 0.01)
    assert plan.cooldown == round(recipe.PLAN.cooldown * 0.01)
    assert [stage.steps for stage in plan.stages] == [
        round(stage.steps * 0.01) or 1 for stage in recipe.PLAN.stages
    ]


def test_shortened():
    lesson = recipe.shortened(recipe.LESSONS[0], 0.01)
    assert lesson.tokens == round(recipe.LESSONS[0].tokens * 0.01 / 2048) * 2048
    assert recipe.shortened(recipe.LESSONS[0], 1.0) == recipe.LESSONS[0]
