"""A pair of models as a library: loaded once, the same texts as everywhere, nothing printed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import spsbench
from spsbench.errors import DataError, UsageError
from spsbench.pair.load import load
from tests.folders import random_model, save

SHORT = {"max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = save(folder / "target", random_model())
    draft = save(folder / "draft", random_model(noise=0.1))
    return {"target": str(target), "draft": str(draft), "engine": "eager"}


@pytest.fixture(scope="module")
def pair(folders):
    return load(**folders, **SHORT)


def test_the_package_gives_it_on_first_use(folders):
    assert {"bench", "generate", "load"} <= set(dir(spsbench))
    assert spsbench.load is load
    once = spsbench.generate("the cat", **folders, **SHORT, seed=3)
    assert len(once.tokens) == 12
    with pytest.raises(AttributeError):
        _ = spsbench.lode


def test_models_are_loaded_once(pair, monkeypatch):
    def again(*given, **more):
        raise AssertionError("loaded again")

    monkeypatch.setattr("spsbench.models.source.load_model", again)
    sampled = pair.generate("the cat", k=2, temperature=0.7)
    plain = pair.generate("the cat", k=0)
    found = pair.generate("the cat the cat", drafter="ngram:min_n=1")
    assert sampled.cell.draft is not None
    assert plain.cell.draft is found.cell.draft is None


def test_a_text_is_what_was_made(pair, capsys):
    text = pair.generate("the cat", seed=4)
    assert str(text) == text.text == "".join(piece.text for piece in text.pieces)
    assert text.text == "".join(piece.text for piece in pair.stream("the cat", seed=4))
    assert sum(r.emitted for r in text.rounds) == len(text.tokens) == text.metrics.tokens
    assert text.finish == "length"
    assert len(repr(text)) < 120
    assert capsys.readouterr() == ("", "")


def test_markup_in_a_text_stays_text(pair):
    from spsbench.loop.text import Origin, Piece

    made = pair.generate("the cat")
    hostile = replace(made, pieces=(Piece("<script>alert(1)</script>", Origin.BONUS),))
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()


def test_the_same_options_give_the_same_text_as_the_command(pair, folders, capsys):
    import json

    from spsbench.cli.main import app

    flags = [f"--{name}={value}" for name, value in folders.items()]
    line = ["generate", "the cat", "-n", "12", "--ignore-eos", "--json", "--seed", "9", *flags]
    app(line, standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["text"] == pair.generate("the cat", seed=9).text


@pytest.mark.slow
def test_a_benchmark_is_resumed_and_told(pair, tmp_path):
    asked = {"data": "mini", "limit": 2, "k": [1, 2], "max_new_tokens": 4, "out": tmp_path / "run"}
    seen = []
    run = pair.bench("xsum:count=2", **asked, watch=lambda pace: seen.append(str(pace)))
    assert [row.cell.k for row in run.summary] == [0, 1, 2]
    assert len(seen) == 1 + 2 * 3
    again = pair.bench("xsum:count=2", **asked, resume=True)
    assert again.records == run.records
    assert run.rows()[1]["k"] == 1
    assert "XSum-mini" in run._repr_markdown_()
    with pytest.raises(UsageError):
        pair.bench("xsum:count=2", **asked | {"limit": 3})


@pytest.mark.parametrize(
    "prompt",
    [3, b"abc", {"role": "user", "content": "x"}, [{"role": "user"}], [{"rol": 1}, "a"], [1.5]],
)
def test_what_is_no_prompt_is_refused_in_a_line(pair, prompt):
    with pytest.raises(DataError) as refused:
        pair.generate(prompt)
    assert "\n" not in str(refused.value)


def test_token_ids_may_be_an_array(pair):
    plain = pair.generate([1, 2, 3], seed=1)
    assert pair.generate(np.array([1, 2, 3]), seed=1).tokens == plain.tokens
    assert pair.generate(torch.tensor([1, 2, 3]), seed=1).tokens == plain.tokens
