"""Hidden states on disk teach what computed ones do, and survive a kill; another's are refused."""

from dataclasses import replace

import pytest
import torch

from spsbench.errors import DataError, MismatchError, OutOfMemoryError
from spsbench.extensions.training.batches import Batches
from spsbench.extensions.training.gradients import Gradients
from spsbench.extensions.training.teacher import TOGETHER, CachedTeacher, Features, Teacher
from spsbench.parallel.process_group import SingleProcess
from tests.extensions.training import small
from tests.extensions.training.test_course import RULES

OF = {"target": "tiny", "files": "abc"}
ROUNDING = 128 * torch.finfo(torch.float32).eps
"""Of a tensor's largest number: a library's product of a row may depend on the rows beside it.

Seen: 0 to 34 units, with AVX-512, AVX2 and SSE4.1, on one and three threads.
"""


@pytest.fixture(scope="module")
def texts(model):
    return small.texts(model, count=TOGETHER + 2)


def kept(model, texts, folder, kind="eagle3"):
    made = small.student(kind, model)
    layers = sorted({*made.reads(small.LAYERS), small.LAYERS})
    return Features(folder, Teacher(model, small.VOCAB), texts, layers, OF)


def gradients(kind, model, texts, teacher):
    made = small.student(kind, model)
    batches = Batches(texts, 80, 0, torch.device("cpu"))
    Gradients(made, teacher, batches, RULES, SingleProcess()).add(0, 8)
    return {name: weight.grad for name, weight in made.network.named_parameters()}


@pytest.mark.parametrize(
    "kind",
    ["eagle3", *(pytest.param(k, marks=pytest.mark.slow) for k in small.KINDS if k != "eagle3")],
)
def test_gradients_are_those_of_computed_features_up_to_rounding(kind, model, texts, tmp_path):
    features = kept(model, texts, tmp_path / "f", kind)
    features.write()
    assert features.bytes == sum(p.stat().st_size for p in (tmp_path / "f").glob("*.bin"))
    features.open()
    plain = gradients(kind, model, texts, Teacher(model, small.VOCAB))
    teacher = Teacher(model, small.VOCAB)
    remembering = CachedTeacher(teacher, features)
    teacher.teach = None  # it is not asked
    assert farthest(gradients(kind, model, texts, remembering), plain) < ROUNDING
    for layer, rows in features._rows.items():  # planted: bfloat16 on the way to the disk
        features._rows[layer] = rows.bfloat16().float()
    assert farthest(gradients(kind, model, texts, remembering), plain) > ROUNDING


def farthest(found, plain):
    """The largest difference of a gradient, in parts of its largest number."""
    return max(
        float((found[n] - g).abs().max() / (g.abs().max() + 1e-30)) for n, g in plain.items()
    )


def test_what_was_killed_is_gone_on_with(model, texts, tmp_path):
    whole, torn = kept(model, texts, tmp_path / "a"), kept(model, texts, tmp_path / "b")
    whole.write()
    torn.write()
    files = sorted((tmp_path / "b").glob("*.bin"))
    expected = [path.read_bytes() for path in files]
    with files[0].open("r+b") as file:
        file.truncate(len(expected[0]) - 5)  # in the last batch: the first is kept
    asked = []
    teach = torn._teacher.teach
    torn._teacher.teach = lambda batch: asked.append(len(batch.ids)) or teach(batch)
    torn.write()
    assert asked == [2]
    assert [path.read_bytes() for path in files] == expected
    torn.write()
    assert asked == [2]  # all there


def test_those_of_another_training_are_refused(model, texts, tmp_path):
    kept(model, texts, tmp_path / "f").write()
    with pytest.raises(MismatchError, match=r"texts: .*\n|tokens: "):
        kept(model, texts[1:], tmp_path / "f").write()
    with pytest.raises(MismatchError, match=r"layers: \[6\], there"):
        kept(model, texts, tmp_path / "f", "medusa").write()


def test_other_texts_are_computed(model, texts, tmp_path):
    features = kept(model, texts[1:], tmp_path / "f")
    features.write()
    features.open()
    teacher = CachedTeacher(Teacher(model, small.VOCAB), features)
    batch = small.batch(texts[:3])
    assert features.of(batch) is None
    assert torch.equal(teacher.teach(batch).logits, Teacher(model, small.VOCAB).teach(batch).logits)


def test_a_disk_without_room_is_refused_before_anything_is_computed(
    model, texts, tmp_path, monkeypatch
):
    features = kept(model, texts, tmp_path / "f")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("U", (), {"free": 100}))
    with pytest.raises(OutOfMemoryError, match=r"hidden states of .* tokens need"):
        features.check_room()
    assert not (tmp_path / "f").exists()


def test_logits_that_are_more_than_a_head_are_refused(model, texts, tmp_path):
    """As with a soft cap after the head: what is kept would teach other laws."""
    features = kept(model, texts, tmp_path / "f")
    parts = features._teacher.parts
    doubled = replace(parts, lm_head=lambda hidden: 2 * parts.lm_head(hidden))
    features._teacher.parts = doubled
    with pytest.raises(DataError, match="Leave out `store_features`"):
        features.write()
