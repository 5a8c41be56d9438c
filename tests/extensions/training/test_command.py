"""`sps train`: from a folder to a drafter that `--draft` takes, and what it says of bad input."""

import json
import signal
import tomllib
from pathlib import Path

import pytest
import torch

from spsbench.errors import Exit
from spsbench.extensions.training.loop import TrainingLoop
from tests.folders import byte_tokenizer, random_model, save

SMALL = (
    *("--count", "12", "--tokens", "12", "--batch-tokens", "64", "--micro-tokens", "64"),
    *("--steps", "4", "--evaluations", "2", "--cost-seconds", "0", "--save-as", "float32"),
)
REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def made(target, tmp_path_factory):
    """A head that was trained."""
    return str(tmp_path_factory.mktemp("head") / "out")


def test_a_head_from_a_folder_to_a_text(sps, target, made):
    flags = ("--target", target, "--device", "auto", "--out", made, *SMALL)
    ran = sps("train", "head", "--kind", "eagle3", "--draft-vocab", "200", *flags, "--json")
    assert ran.code == Exit.OK, ran.err
    told = json.loads(ran.out)
    assert told["drafter"] == "eagle3"
    assert 1 < told["tau"] < 9
    assert "step 4/4  loss" in ran.err
    result = Path(told["folder"])
    card = (result / "README.md").read_text()
    assert "tokens a round" in (result.parent / "page.html").read_text()
    assert "| 1 | 0." in card
    assert "sps generate --target" in card
    assert json.loads((result / "config.json").read_text())["speculators_model_type"] == "eagle3"
    made_text = sps("generate", "the cat", "--target", target, "--draft", told["folder"])
    assert made_text.code == Exit.OK, made_text.err
    assert "is a head: eagle3, written by speculators" in made_text.err

    # it learns on from there, with texts of people, whose prompts are learned too
    people = result.parents[1] / "people.jsonl"
    people.write_text(json.dumps({"id": "a", "prompt": "the cat", "reference": " sat"}) + "\n")
    more = ("--texts", str(result.parent / "texts.jsonl"), "--references", str(people), "--whole")
    on = ("--out", f"{made}-on", "--from", told["folder"], *SMALL, *more)
    ran = sps("train", "head", "--target", target, *on, "--json")
    assert ran.code == Exit.OK, ran.err
    assert "2 by people" in ran.err
    assert f"step 0/4  alpha {told['alpha'][0][0]:.3f}" in ran.err

    # the same again: refused without a word, gone on with --resume, compared field by field
    ran = sps("train", "head", "--kind", "eagle3", "--draft-vocab", "200", *flags)
    assert ran.code == Exit.MISMATCH
    assert "Continue with --resume" in ran.err
    ran = sps("train", "head", "--kind", "eagle", *flags, "--seed", "1", "--resume")
    assert ran.code == Exit.MISMATCH
    assert 'kind: "eagle", there "eagle3"' in ran.err
    assert "seed: 1, there 0" in ran.err


def test_ctrl_c_ends_a_step_and_the_training_goes_on(sps, target, tmp_path, monkeypatch):
    add_gradients, steps = TrainingLoop.add_gradients, []

    def interrupted(self, step):
        steps.append(step)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return add_gradients(self, step)

    monkeypatch.setattr(TrainingLoop, "add_gradients", interrupted)
    flags = ("--target", target, "--out", str(tmp_path / "out"), *SMALL)
    ran = sps("train", "head", "--kind", "mlp", *flags)
    assert ran.code == Exit.INTERRUPTED, ran.err
    assert "stopped. Continue with: sps train head" in ran.err
    assert "step 4/4" not in ran.err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    manifest = tmp_path / "out" / "train.json"
    dtype = json.loads(manifest.read_text())["products"]
    other = {"float32": "bfloat16", "bfloat16": "float32"}[dtype]
    for file in (manifest, manifest.with_name("texts.jsonl")):  # begun on another machine
        file.write_text(file.read_text().replace(f'"{dtype}"', f'"{other}"'))
    ran = sps("train", "head", "--kind", "mlp", *flags, "--resume")
    assert ran.code == Exit.OK, ran.err
    assert json.loads(manifest.read_text())["products"] == other


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_head_is_trained_on_a_gpu(sps, target, tmp_path):
    flags = ("--target", target, "--device", "cuda", "--out", str(tmp_path / "out"), *SMALL)
    ran = sps("train", "head", "--kind", "eagle3", *flags, "--json")
    assert ran.code == Exit.OK, ran.err
    assert json.loads(ran.out)["tau"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa", "mlp", "draft", "blockwise", "falcon", "mtp"])
def test_every_kind_is_read_again(sps, target, kind, tmp_path):
    flags = ("--target", target, "--out", str(tmp_path / "out"), *SMALL)
    what = ("draft", "--layers", "1") if kind == "draft" else ("head", "--kind", kind)
    ran = sps("train", *what, *flags)
    assert ran.code == Exit.OK, ran.err
    ran = sps("generate", "the cat", "--target", target, "--draft", ran.out.strip())
    assert ran.code == Exit.OK, ran.err


@pytest.mark.parametrize("what", REFUSED["commands"])
def test_a_refused_training_writes_nothing(sps, target, what, tmp_path):
    kind, *flags = what.split()
    if "infinite" in flags:
        model = random_model()
        model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("inf")
        flags[-1] = str(save(tmp_path / "infinite", model, byte_tokenizer()))
    given = ("--target", target, "--out", str(tmp_path / "out"), *SMALL, *flags)
    ran = sps("train", kind, *given)
    assert ran.code in (Exit.USAGE, Exit.DATA, Exit.MISSING, Exit.UNAVAILABLE)
    assert "Traceback" not in ran.err
    assert "texts: " not in ran.err
    assert not (tmp_path / "out").exists()


def test_a_refusal_leaves_a_folder_that_was_there(sps, target, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    ran = sps("train", "head", "--target", target, "--out", str(out), *SMALL)
    assert ran.code == Exit.MISMATCH
    assert (out / "mine").read_text() == "x"
