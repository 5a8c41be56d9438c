"""Many texts at once: each is the model's own, whatever stands beside it."""

import json

import torch

from spsbench.extensions.training import conduct
from spsbench.extensions.training.folder import Folder
from spsbench.extensions.training.generation import continue_texts
from spsbench.extensions.training.options import HeadTraining
from spsbench.loop.sampling import Warp
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.models import ModelSpec
from tests.extensions.training import small

PROMPTS = [[1, 2, 3], [5] * 9, [7, 8], [10, 20, 3, 4], [6], [9, 9]]


def written(model, prompts, warp, ends=frozenset(), most=10):
    return continue_texts(
        model, prompts, most=most, warp=warp, ends=ends, vocab=small.VOCAB, seed=3
    )


def test_each_text_is_what_the_model_writes_alone(model):
    """Greedy, with ends that come early: rows that have ended leave the batch."""
    free = written(model, PROMPTS, Warp(0.0))
    ends = frozenset({text[2] for text in free[:3]})
    together = written(model, PROMPTS, Warp(0.0), ends)
    assert len({len(text) for text in together}) > 1
    for prompt, text in zip(PROMPTS, together, strict=True):
        ids = list(prompt)
        for token in text:
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            assert int(logits.argmax()) == token
            ids.append(token)
        assert len(text) == 10 or text[-1] in ends
        assert not ends.intersection(text[:-1])


def test_draws_of_a_text_do_not_depend_on_its_neighbours(model):
    whole = written(model, PROMPTS, Warp(1.0))
    assert whole == written(model, PROMPTS, Warp(1.0))
    assert written(model, PROMPTS[:3], Warp(1.0)) == whole[:3]


def test_texts_follow_the_law(model):
    """First tokens of many texts after one prompt, against the law: within five deviations."""
    count = 4000
    drawn = torch.tensor(written(model, [[1, 2, 3]] * count, Warp(0.7), most=1))[:, 0]
    law = Warp(0.7)(model(torch.tensor([[1, 2, 3]])).logits[0, -1])
    seen = torch.bincount(drawn, minlength=small.VOCAB) / count
    assert ((seen - law).abs() < 5 * (law * (1 - law) / count).sqrt() + 1e-3).all()


def test_a_resume_keeps_the_numbers_it_was_begun_with(monkeypatch, tmp_path, said):
    monkeypatch.setattr(conduct, "quicker", lambda device: "bfloat16")

    def chosen(resume):
        made = conduct.Trainer(
            target=ModelSpec("nano"),
            options=HeadTraining(),
            place=OutputFolder(out=tmp_path, resume=resume),
            access=Access(),
            price=lambda folder, drafter: None,
            watch=lambda course: None,
            stop=lambda: False,
        )
        return made._products(Folder(tmp_path), "cpu")

    assert chosen(resume=True) == "bfloat16"
    (tmp_path / "train.json").write_text(json.dumps({"products": "float32"}))
    assert chosen(resume=True) == "float32"
    (tmp_path / "train.json").write_text(json.dumps({"loss": "kl"}))  # of before: float32
    assert chosen(resume=True) == "float32"
    assert said == ["products in bfloat16; weights and losses in float32"]
