"""A course of training: it learns, it is resumed bit for bit, and it ends for a reason."""

from dataclasses import replace

import pytest
import torch

from spsbench.errors import DataError, UsageError
from spsbench.extensions.training.acceptance import Acceptance, Gain, Share, foreseen
from spsbench.extensions.training.batches import Batches
from spsbench.extensions.training.gradients import Rules
from spsbench.extensions.training.loop import TrainingLoop, checkpoints_in
from spsbench.extensions.training.losses import cross_entropy, hybrid
from spsbench.extensions.training.teacher import Teacher
from spsbench.loop.sampling import Warp
from tests.extensions.training import small

RULES = Rules(
    loss=hybrid,
    warp=Warp(),
    warped=True,
    rate=1e-2,
    steps=8,
    minutes=1.0,
    micro_tokens=40,
    evaluations=4,
    patience=0,
    worth=0.0,
)


def loop(model, texts, folder, kind="eagle3", rules=RULES, **more):
    batches = Batches(texts[:8], 80, 0, torch.device("cpu"))
    student, held = small.student(kind, model), [small.batch(texts[8:])]
    return TrainingLoop(student, Teacher(model, small.VOCAB), batches, held, rules, folder, **more)


@pytest.fixture
def course(model, texts, tmp_path):
    return lambda *kind, folder="a", **more: loop(model, texts, tmp_path / folder, *kind, **more)


@pytest.fixture(scope="module")
def assert_as_uninterrupted(model, texts, tmp_path_factory):
    """Compare a course's looks and weights with those of one that was never stopped."""
    wholes = {}

    def check(kind, again):
        if kind not in wholes:
            wholes[kind] = loop(model, texts, tmp_path_factory.mktemp(kind), kind)
            assert wholes[kind].run()
        looks, wanted = ([look.to_json() for look in c.looks[1:]] for c in (again, wholes[kind]))
        assert looks == wanted
        for name, weight in weights(wholes[kind]).items():
            assert torch.equal(weight, again.student.network.state_dict()[name]), name

    return check


def weights(made):
    return {name: weight.clone() for name, weight in made.student.network.state_dict().items()}


@pytest.mark.parametrize(
    "kind",
    ["eagle3", *(pytest.param(k, marks=pytest.mark.slow) for k in ("draft", "medusa", "falcon"))],
)
def test_what_was_killed_goes_on_with_the_same_bits(kind, course, assert_as_uninterrupted):
    left = iter([False, False, True])
    first = course(kind, stop=lambda: next(left, True))
    assert not first.run()
    assert 0 < first.step < 8
    again = course(kind)
    assert again.run()
    assert_as_uninterrupted(kind, again)
    assert [step for step, _ in checkpoints_in(again.folder)] == [6, 8]


SLOWLY = ("falcon",)  # 16 steps over ten texts of a random target are too little for an LSTM


@pytest.mark.parametrize(
    "kind",
    [
        "mlp",
        *(
            pytest.param(k, marks=pytest.mark.slow)
            for k in small.KINDS
            if k not in ("mlp", *SLOWLY)
        ),
    ],
)
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
    with pytest.raises(DataError, match=r"the loss is nan \(step 6, texts \d.*of step 4 is kept"):
        made.run()
    assert [step for step, _ in checkpoints_in(made.folder)] == [2, 4]


def test_too_little_time_for_a_look_is_said_at_once(course):
    made = course(rules=replace(RULES, steps=None, minutes=1e-6))
    with pytest.raises(UsageError, match="`minutes` is 1e-06: expected"):
        made.run()


def test_the_probe_leaves_no_trace(course):
    made = course(rules=replace(RULES, steps=None))
    before = weights(made)
    made._affordable(made._gradients())
    assert made.step == 0
    assert all(torch.equal(before[n], w) for n, w in made.student.network.state_dict().items())


def test_patience_ends_it(course):
    made = course(rules=replace(RULES, rate=1e-12, steps=40, evaluations=20, patience=3))
    assert made.run()
    assert made.ended.startswith("tau has not risen for 3 looks: stopping. ")
    assert made.ended.endswith("`resume` `patience` 0")
    assert made.step == 6


class Poor:
    """Prices of a drafter that cannot pay."""

    def best(self, reach):
        return Gain(0.5 + 0.1 * sum(reach), 1)


def test_what_will_not_pay_is_stopped(course):
    made = course(rules=replace(RULES, steps=40, evaluations=20, worth=1.0), prices=Poor())
    assert made.run()
    assert "x at best by the curve: stopping" in made.ended
    assert made.step < 40


@pytest.mark.slow
def test_what_was_stopped_for_little_worth_learns_on_where_none_is_asked(course):
    rules = replace(RULES, steps=40, evaluations=20, worth=1.0)
    made = course(rules=rules, prices=Poor())
    assert made.run()
    assert made.ended.endswith("`resume` `worth` 0")
    again = course(rules=rules, prices=Poor())
    assert again.run()
    assert (again.step, again.ended) == (made.step, made.ended)
    again = course(rules=replace(rules, worth=0.0), prices=Poor())
    assert again.run()
    assert (again.step, again.ended) == (40, "")


def test_a_stop_is_obeyed_although_every_step_is_looked_at(course):
    made = course(rules=replace(RULES, evaluations=8), stop=lambda: True)
    assert not made.run()
    assert made.step == 1
    again = course(rules=replace(RULES, evaluations=8))
    assert again.run()
    assert [look.step for look in again.looks] == list(range(9))


@pytest.mark.parametrize("step", [4, 5], ids=["in a look", "in a step"])
def test_what_was_interrupted_goes_on_with_the_same_bits(step, course, assert_as_uninterrupted):
    def interrupted(batch):
        if first.step == step:
            raise KeyboardInterrupt
        return teach(batch)

    first = course()
    teach, first.teacher.teach = first.teacher.teach, interrupted
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert checkpoints_in(first.folder)[-1][0] == step
    again = course()
    assert again.run()
    assert_as_uninterrupted("eagle3", again)


def test_the_time_left_is_that_of_the_steps_left_and_never_beyond_the_end(course):
    made = course(rules=replace(RULES, steps=None, minutes=2.0))
    assert made.seconds_left == 120
    made.steps, made.step, made.seconds = 10, 4, 40.0
    assert made.seconds_left == 60
    made.seconds = 120.0
    assert made.seconds_left == pytest.approx(1.3 * 120 - 120)
    assert course().seconds_left is None


def test_what_is_foreseen_is_a_line_over_the_logarithm_of_steps():
    steps = [1, 2, 4, 8, 16, 32]
    looks = [Acceptance((Share(0.1 + 0.05 * i, 0, 1),), (), 4, 4) for i in range(6)]
    assert foreseen(steps, looks, 64) == [pytest.approx(0.1 + 0.05 * 6)]
    assert foreseen(steps[:4], looks[:4], 8) is None
    steep = [Acceptance((Share(0.1 * 2**i, 0, 1),), (), 4, 4) for i in range(6)]
    assert foreseen(steps, steep, 64) == [1.0]


def test_the_first_third_of_the_steps_is_no_curve():
    looks = [Acceptance((Share(0.1, 0, 1),), (), 4, 4) for _ in range(12)]
    assert foreseen(range(11), looks[:11], 34) is None
    assert foreseen(range(12), looks, 33) == [pytest.approx(0.1)]


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
