"""The shipped pair: sizes, files, context, and that it loads without a word."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import spsbench
from spsbench.tasks.articles import articles, layout

MODELS = Path(spsbench.__file__).parent / "weights"
NAMES = ("nano", "nano-draft")
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
}


@pytest.fixture(scope="module")
def pair():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()
            for name in NAMES
        ]


def test_files():
    for name in NAMES:
        extra = {"training.json"} if name == "nano" else set()
        assert {file.name for file in (MODELS / name).iterdir()} == FILES | extra
    assert sum(f.stat().st_size for name in NAMES for f in (MODELS / name).iterdir()) < 30e6


def test_sizes(pair):
    target, draft = pair
    assert target.num_parameters() + draft.num_parameters() <= 14_000_000
    assert draft.config.num_hidden_layers <= target.config.num_hidden_layers / 4
    for model in pair:
        assert model.config.max_position_embeddings == 2048
        assert model.config.tie_word_embeddings
        assert model.generation_config.to_diff_dict().keys() <= {
            *("bos_token_id", "eos_token_id", "transformers_version", "_from_model_config"),
        }


def test_tokenizer_is_shared_and_adds_nothing():
    one, two = ((MODELS / name / "tokenizer.json").read_bytes() for name in NAMES)
    assert one == two
    words = AutoTokenizer.from_pretrained(MODELS / "nano")
    text = "def f(x):\n    return [y ** 2 for y in x]\n"
    ids = words(text)["input_ids"]
    assert words.decode(ids) == text
    assert words.eos_token_id not in ids
    assert len(words) == 4096


@pytest.mark.slow
def test_works_at_the_end_of_its_context(pair):
    words = AutoTokenizer.from_pretrained(MODELS / "nano")
    text = layout(articles("mini", 40).items)
    ids = torch.tensor([words(text, verbose=False)["input_ids"][:2048]])
    assert ids.shape == (1, 2048)
    with torch.no_grad():
        logits = pair[0](input_ids=ids).logits[0, :-1]
    losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    # Weaker at the end of the context than in its middle, as the card says, but not lost: no worse
    # than the 5-gram model.
    told = json.loads((MODELS / "nano" / "training.json").read_text())
    assert losses[256:512].mean() < 0.9
    assert losses[-256:].mean() < told["news"]["fivegram_loss"]
    stretches = told["stdlib"]["forced"]["target_by_position"]
    assert max(stretches) < min(stretches) + 0.5
