"""A course of training: it learns, it is resumed bit for bit, and it ends for a reason."""

from dataclasses import replace

import pytest
import torch

from spsbench.errors import DataError
from spsbench.extensions.training.acceptance import Acceptance, Gain, Share, foreseen
from spsbench.extensions.training.batches import Batches, OnPolicyTexts
from spsbench.extensions.training.generation import continue_texts
from spsbench.extensions.training.gradients import Gradients
from spsbench.extensions.training.loop import checkpoints_in
from spsbench.extensions.training.losses import cross_entropy, hybrid
from spsbench.loop.sampling import Warp
from tests.extensions.training import small
from tests.extensions.training.small import RULES
from tests.variants import first

KILLED = ("eagle3", "draft, on policy", "draft, pruned", "draft", "medusa", "falcon")


def write(student, prompts, key, most):
    """On-policy texts."""
    rules = {"most": most, "warp": Warp(), "ends": frozenset(), "vocab": small.VOCAB}
    return continue_texts(student.network, prompts, seed=key[0] * 1000 + key[1], **rules)


def loop(model, texts, folder, kind="eagle3", **more):
    kind, _, variant = kind.partition(", ")
    options = {"window": 4, "pruned": True} if variant == "pruned" else {}
    if variant == "on policy":
        more["on_policy"] = OnPolicyTexts(0.5, write, torch.device("cpu"))
    return small.training(small.student(kind, model, **options), model, texts, folder, **more)


@pytest.fixture
def course(model, texts, tmp_path):
    return lambda *kind, folder="a", **more: loop(model, texts, tmp_path / folder, *kind, **more)


@pytest.fixture(scope="module")
def assert_as_uninterrupted(model, texts, tmp_path_factory):
    """Compare the evaluations and weights of a training with those of one that never stopped."""
    wholes = {}

    def check(kind, again):
        assert again.run()
        if kind not in wholes:
            wholes[kind] = loop(model, texts, tmp_path_factory.mktemp("whole"), kind)
            assert wholes[kind].run()
        looks, wanted = ([look.to_json() for look in c.looks[1:]] for c in (again, wholes[kind]))
        assert looks == wanted
        for name, weight in small.weights(wholes[kind]).items():
            assert torch.equal(weight, again.student.network.state_dict()[name]), name

    return check


@pytest.mark.parametrize("kind", first(2, KILLED))
def test_what_was_killed_goes_on_with_the_same_bits(kind, course, assert_as_uninterrupted):
    left = iter([False, False, True])
    stopped = course(kind, stop=lambda: next(left, True))
    assert not stopped.run()
    assert 0 < stopped.step < 8
    again = course(kind)
    assert_as_uninterrupted(kind, again)
    assert [step for step, _ in checkpoints_in(again.folder)] == [6, 8]


# falcon: 16 steps over ten texts of a random target are too little for an LSTM
@pytest.mark.parametrize("kind", first(1, [k for k in ("mlp", *small.KINDS) if k != "falcon"]))
def test_every_kind_learns(kind, course):
    made = course(
        kind, rules=replace(RULES, rate=2e-3 if kind == "draft" else 1e-2, steps=16, evaluations=2)
    )
    assert made.run()
    depth = len(made.now.acceptance.reach)
    assert made.chosen.acceptance.tau(depth) > made.looks[0].acceptance.tau(depth)


def test_a_loss_that_is_no_number_keeps_what_was_there(course):
    def broken(laws):
        values = hybrid(laws)
        return values * float("nan") if made.step == 5 else values

    made = course(rules=replace(RULES, loss=broken))
    with pytest.raises(DataError):
        made.run()
    assert [step for step, _ in checkpoints_in(made.folder)] == [2, 4]


class Poor:
    """Prices of a drafter that cannot pay."""

    def best(self, reach):
        return Gain(0.5 + 0.1 * sum(reach), 1)


@pytest.mark.parametrize(
    ("changes", "prices", "flag"),
    [
        ({"rate": 1e-12, "patience": 3}, None, "patience"),
        ({"worth": 1.0}, Poor(), "worth"),
    ],
)
def test_what_does_not_rise_or_will_not_pay_is_stopped_and_goes_on(course, changes, prices, flag):
    rules = replace(RULES, steps=40, evaluations=20, **changes)
    made = course(rules=rules, prices=prices)
    assert made.run()
    assert made.ended.endswith(f"`resume` `{flag}` 0")
    assert 6 <= made.step < 40
    again = course(rules=rules, prices=prices)
    assert again.run()
    assert (again.step, again.ended) == (made.step, made.ended)
    again = course(rules=replace(rules, **{flag: 0}), prices=prices, stop=lambda: True)
    assert not again.run()
    assert again.step > made.step


def test_what_is_foreseen_is_a_line_over_the_logarithm_of_steps():
    steps = [1, 2, 4, 8, 16, 32]
    looks = [Acceptance((Share(0.1 + 0.05 * i, 0, 1),), (), 4, 4) for i in range(6)]
    assert foreseen(steps, looks, 64) == [pytest.approx(0.1 + 0.05 * 6)]
    assert foreseen(steps[:4], looks[:4], 8) is None
    steep = [Acceptance((Share(0.1 * 2**i, 0, 1),), (), 4, 4) for i in range(6)]
    assert foreseen(steps, steep, 64) == [1.0]
    flat = [Acceptance((Share(0.1, 0, 1),), (), 4, 4)] * 12
    assert foreseen(range(11), flat[:11], 34) is None  # the first third of the steps is no curve
    assert foreseen(range(12), flat, 33) == [pytest.approx(0.1)]


def test_a_batch_is_a_function_of_its_step(texts):
    made = Batches(texts, 60, 1, torch.device("cpu"))
    seen = [i for step in range(made.epoch) for i in made.chosen(step)]
    assert sorted(seen) == list(range(10))
    assert made.chosen(7) == Batches(texts, 60, 1, torch.device("cpu")).chosen(7)
    parts = made.parts(0, 20)
    assert sorted(i for numbers in parts for i in numbers) == sorted(made.chosen(0))


@pytest.mark.parametrize(("kind", "asked"), [("draft", 0), ("medusa", 1)])
def test_a_loss_of_tokens_asks_no_more_of_the_target_than_the_student_reads(kind, asked, course):
    made = course(kind, rules=replace(RULES, loss=cross_entropy, warped=False))
    taught = []
    teach = made.teacher.teach
    made.teacher.teach = lambda batch: taught.append(batch) or teach(batch)
    step = replace(made._gradients(), rules=replace(made.rules, micro_tokens=1000))
    loss = step.add(0, 8)
    expected = {name: w.grad.clone() for name, w in made.student.network.named_parameters()}
    assert len(taught) == 1
    made.student.network.zero_grad()
    assert replace(step, rules=replace(step.rules, lawless=True)).add(0, 8) == loss
    assert len(taught) == 1 + asked
    for name, weight in made.student.network.named_parameters():
        assert torch.equal(weight.grad, expected[name]), name


def test_the_target_judges_what_the_student_wrote(course, texts):
    """The gradient is that of a batch which has the student's texts in it from the start."""
    made = course("draft", on_policy=OnPolicyTexts(1.0, write, torch.device("cpu")))
    network = made.student.network.eval()
    loss = made._gradients().add(0, 8)
    found = {name: weight.grad.clone() for name, weight in network.named_parameters()}
    network.zero_grad()

    prompts = [prompt for prompt, _ in texts[:8]]
    parts = made.batches.parts(0, RULES.micro_tokens)
    own = {}
    for numbers in parts:
        longest = max(len(texts[i][1]) for i in numbers)
        said = write(made.student, [prompts[i] for i in numbers], (0, numbers[0]), longest)
        for i, text in zip(numbers, said, strict=True):
            own[i] = (prompts[i], text[: len(texts[i][1])])
    assert any(own[i][1] != texts[i][1] for i in own)
    batches = Batches([own.get(i, texts[i]) for i in range(8)], 80, 0, torch.device("cpu"))
    again = Gradients(made.student, made.teacher, batches, made.rules)
    assert again.add(0, 8) == pytest.approx(loss, abs=1e-7)
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight.grad, found[name], atol=1e-7, rtol=1e-5)
