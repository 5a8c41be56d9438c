"""The heads in the package: they draft for `nano` offline, and keep what their cards say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import spsbench
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.errors import SpsError
from spsbench.heads.layers import TextCaches
from spsbench.loop.batch import DRAFT, Batch
from spsbench.methods.drafters import head_frontier as reader
from spsbench.settings.grid import make_request
from spsbench.settings.models import BUNDLED, DEFAULT_HEAD
from spsbench.spec import Spec
from tests.heads.stage import FIRST, KINDS, TEXT

LARGEST = 3 << 20  # bytes of weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_there_and_small(kind):
    folder = BUNDLED[DEFAULT_HEAD["nano", kind]]
    assert (folder / "model.safetensors").stat().st_size < LARGEST
    assert (folder / "README.md").read_text().startswith("---\n")
    assert make_request(drafter=kind).draft.id == f"nano-{kind}"
    assert make_request(drafter=kind, target="./mine").draft is None


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1000], None])
def test_damaged_weights_of_a_head_are_told_as_such(damage, tmp_path):
    folder = shutil.copytree(BUNDLED["nano-eagle3"], tmp_path / "head")
    weights = folder / "model.safetensors"
    if damage is None:
        weights.unlink()
    else:
        weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(SpsError) as error:
        spsbench.load(draft=str(folder))
    assert "another model" not in str(error.value)


def test_random_weights_take_no_head_unasked():
    for given in {"weights": "random"}, {"weights": "random-int8"}:
        assert make_request(target="smollm2", **given).drafter == Spec("ngram")


def test_smollm2_has_a_head_and_is_drafted_for_by_what_was_fastest():
    folder = BUNDLED["smollm2-eagle3"]
    assert (folder / "model.safetensors").stat().st_size < 20 << 20
    assert (folder / "README.md").read_text().startswith("---\n")
    for drafter in ("eagle3", "hybrid:first=suffix,then=eagle3"):
        asked = {"target": "smollm2", "drafter": drafter}
        head = make_request(**asked).draft
        assert (head.id, head.weights) == ("smollm2-eagle3", "int8")
        assert make_request(draft_weights="checkpoint", **asked).draft.weights == "checkpoint"
        assert make_request(device="cuda", **asked).draft.weights == "checkpoint"
        assert make_request(weights="blocks", **asked).draft.weights == "int8"
    unasked = make_request(target="smollm2")
    assert (unasked.draft, unasked.k) == (head, None)
    assert (unasked.drafter.name, unasked.schedule.name) == ("hybrid", "payoff")
    assert make_request(target="smollm2", k=4).k == 4
    assert make_request(target="smollm2", k=4).drafter == unasked.drafter
    assert make_request(target="smollm2", drafter="suffix").k == 4
    assert make_request(target="smollm2", decoder="native") == unasked
    assert make_request(target="smollm2", decoder="hf").drafter.name == "ngram"


@pytest.mark.parametrize("kind", FIRST)
def test_its_text_is_the_targets_and_more_than_chance_is_kept(kind):
    told: list[str] = []
    how = {"temperature": 0.0, "max_new_tokens": 48, "offline": True, "say": told.append}
    pair = spsbench.load(drafter=kind, k=3, **how)
    made = pair.generate(TEXT)
    assert not any("other weights" in line for line in told)
    plain = pair.generate(TEXT, k=0)
    assert made.text == plain.text
    assert sum(each.accepted for each in made.rounds) > 3
    card = json.loads((BUNDLED[f"nano-{kind}"] / "training.json").read_text())
    assert card["alpha"][0][0] > 0.3


def test_a_head_for_other_weights_of_its_target_is_said(tmp_path):
    told: list[str] = []
    folder = Path(shutil.copytree(BUNDLED["nano"], tmp_path / "mine"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    pair = spsbench.load(target=str(folder), draft="nano-mlp", k=2, offline=True, say=told.append)
    pair.generate(TEXT, max_new_tokens=4)
    assert any("trained for other weights" in line for line in told)


PROMPTS = [TEXT, "import os\n\nclass Reader:\n    def read(self):\n", "x = "]


def texts(pair: Any, size: int = 0) -> list[tuple[list[int], list[float | None]]]:
    """Tokens and overlaps of laws of every prompt, alone (`size` 0) or in batches."""
    made = pair.generate(PROMPTS, batch=size) if size else [pair.generate(p) for p in PROMPTS]
    return [(text.tokens, [each.overlap for each in text.rounds]) for text in made]


@pytest.fixture(
    scope="module", params=[*FIRST, pytest.param("eagle3 eager", marks=pytest.mark.slow)]
)
def sampled(request: pytest.FixtureRequest) -> Any:
    """A pair with sampled drafts, and its texts alone."""
    kind, engine = (*request.param.split(), "fast")[:2]
    how = {"drafter": kind, "engine": engine, "k": 3, "max_new_tokens": 16, "seed": 3}
    pair = spsbench.load(**how, offline=True)
    return pair, texts(pair)


@pytest.mark.needs_fast
def test_its_texts_are_the_same_in_any_batch(sampled: Any) -> None:
    """Bit for bit where all layers run in own kernels, within rounding elsewhere."""
    pair, alone = sampled
    config = engine_config_of(pair.loaded.target)
    within = 0.0 if config is not None and config.row_bits else 1e-5
    for size in 1, 3:
        for one, other in zip(texts(pair, size), alone, strict=True):
            assert one[0] == other[0]
            assert one[1] == pytest.approx(other[1], abs=within, rel=0)


@pytest.mark.needs_fast
def test_texts_of_a_batch_share_its_passes(sampled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = Batch.ask

    def ask(self: Batch, order: int, kind: Any, given: Any, together: Any) -> Any:
        def counted(every: list[Any]) -> Any:
            calls.extend([len(every)] if order == DRAFT else [])
            return together(every)

        return plain(self, order, kind, given, counted)

    monkeypatch.setattr(Batch, "ask", ask)
    texts(sampled[0], 3)
    assert max(calls) == 3
    assert sum(calls) > 1.5 * len(calls)


def rows_of_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text gets what was made of the hidden states of another."""
    plain = reader.over_rows
    monkeypatch.setattr(
        reader, "over_rows", lambda call, every: plain(call, [*every[1:], *every[:1]])
    )


def keys_of_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text attends to the keys and values of another."""
    plain = TextCaches.update

    def update(self: TextCaches, *given: Any) -> Any:
        held = plain(self, *given)
        others = zip(held, [*held[1:], *held[:1]], strict=True)
        return [a if b.sees is not a.sees else a._replace(held=b.held) for a, b in others]

    monkeypatch.setattr(TextCaches, "update", update)


@pytest.mark.needs_fast
@pytest.mark.parametrize("defect", [rows_of_a_neighbour, keys_of_a_neighbour])
def test_a_neighbour_in_a_common_pass_changes_a_text(
    sampled: Any, defect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, alone = sampled
    if defect is keys_of_a_neighbour and "eagle" not in str(pair.cell.drafter):
        pytest.skip("no attention")
    defect(monkeypatch)
    assert texts(pair, 3) != alone
