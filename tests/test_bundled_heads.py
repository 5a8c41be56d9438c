"""The heads in the package: they draft for `nano` offline, and keep what their cards say."""

import json

import pytest

import spsbench
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.models import BUNDLED, DEFAULT_HEAD

KINDS = sorted(kind for _, kind in DEFAULT_HEAD)
LARGEST = 3 << 20  # bytes of weights
TEXT = "def fibonacci(n):\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_there_and_small(kind):
    folder = BUNDLED[DEFAULT_HEAD["nano", kind]]
    assert (folder / "model.safetensors").stat().st_size < LARGEST
    assert (folder / "README.md").read_text().startswith("---\n")
    assert make_cell(drafter=kind).models.draft.id == f"nano-{kind}"
    assert make_cell(drafter=kind, target="./mine").models.draft is None


@pytest.mark.parametrize("kind", KINDS)
def test_its_text_is_the_targets_and_more_than_chance_is_kept(kind):
    pair = spsbench.load(drafter=kind, k=3, temperature=0.0, max_new_tokens=48, offline=True)
    made = pair.generate(TEXT)
    plain = pair.generate(TEXT, k=0)
    assert made.text == plain.text
    assert sum(each.accepted for each in made.rounds) > 3
    told = json.loads((BUNDLED[f"nano-{kind}"] / "training.json").read_text())
    assert told["alpha"][0][0] > 0.3
