"""`sps train`: from a folder to a drafter that `--draft` takes, and what it says of bad input."""

import json
from pathlib import Path

import pytest

from spsbench.errors import Exit

SMALL = (
    *("--count", "12", "--tokens", "12", "--batch-tokens", "64", "--micro-tokens", "64"),
    *("--steps", "4", "--evaluations", "2", "--cost-seconds", "0", "--save-as", "float32"),
)


@pytest.fixture(scope="module")
def made(target, tmp_path_factory):
    """A head that was trained."""
    return str(tmp_path_factory.mktemp("head") / "out")


def test_a_head_from_a_folder_to_a_text(sps, target, made):
    flags = ("--target", target, "--out", made, *SMALL)
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

    # the same again: refused without a word, gone on with --resume, compared field by field
    ran = sps("train", "head", "--kind", "eagle3", "--draft-vocab", "200", *flags)
    assert ran.code == Exit.MISMATCH
    assert "Go on with --resume" in ran.err
    ran = sps("train", "head", "--kind", "eagle", *flags, "--seed", "1", "--resume")
    assert ran.code == Exit.MISMATCH
    assert 'kind: "eagle", there "eagle3"' in ran.err
    assert "seed: 1, there 0" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa", "mlp", "draft", "blockwise", "falcon"])
def test_every_kind_is_read_again(sps, target, kind, tmp_path):
    flags = ("--target", target, "--out", str(tmp_path / "out"), *SMALL)
    what = ("draft", "--layers", "1") if kind == "draft" else ("head", "--kind", kind)
    ran = sps("train", *what, *flags)
    assert ran.code == Exit.OK, ran.err
    ran = sps("generate", "the cat", "--target", target, "--draft", ran.out.strip())
    assert ran.code == Exit.OK, ran.err


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (("head", "--kind", "dflash"), "--kind is dflash: expected eagle3 or eagle"),
        (("head", "--loss", "mse"), "--loss mse: expected one of ce, kl"),
        (("head", "--top-p", "0"), "--top-p is 0"),
        (("draft", "--layers", "3"), "--layers is 3: expected 1..2"),
        (("head", "--prompts", "nowhere.jsonl"), "no such file"),
        (("head", "--texts", "nowhere.jsonl"), "no texts (nowhere.jsonl)"),
        (("head", "--draft-vocab", "1000"), "--draft-vocab is 1000: expected 1.."),
        (("draft", "--from", "nowhere"), "no config.json (nowhere)"),
        (("draft", "--from", "x", "--layers", "2"), "--layers with --from"),
        (("head", "--target", "nowhere"), "nowhere"),
        (("head", "--tokens", "2", "--held-out", "2"), "texts held out are shorter than a draft"),
        (("head", "--on-policy", "0.5"), "--on-policy with a head: expected a draft model"),
        (("draft", "--on-policy", "0.5", "--loss", "ce"), "expected a loss of laws"),
        (("head", "--parallel", "tp:2"), "--parallel is tp:2: expected dp:N"),
        (("head", "--parallel", "dp"), "--parallel dp without torchrun"),
        (("head", "--not-from", "nowhere.jsonl"), "no such file (nowhere.jsonl)"),
        (("head", "--kind", "medusa", "--recompute"), "--recompute with --kind medusa"),
    ],
)
def test_what_cannot_be_meant_is_one_line(sps, target, what, said, tmp_path):
    flags = () if "--target" in what else ("--target", target)
    small = ("--count", "8", "--tokens", "3", "--steps", "1", "--cost-seconds", "0")
    ran = sps("train", *what, *flags, "--out", str(tmp_path / "out"), *small)
    assert ran.code != Exit.OK
    assert said in ran.err
    assert "Traceback" not in ran.err
