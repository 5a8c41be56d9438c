"""A training learns, is resumed bit for bit, and ends for a reason."""

import pytest
import torch

from spsbench.errors import DataError
from spsbench.extensions.training.acceptance import Evaluation, Gain, Share, extrapolate_reach
from spsbench.extensions.training.batches import Batches
from spsbench.extensions.training.folder import checkpoints_in
from spsbench.extensions.training.texts import continue_texts
from spsbench.loop.sampling import Warp
from tests.extensions.training import small
from tests.extensions.training.small import RULES
from tests.variants import first

KILLED = ("draft, on policy", "eagle3", "draft, pruned", "draft", "medusa", "falcon")


def training(model, texts, folder, kind="eagle3", rules=None, **more):
    kind, _, variant = kind.partition(", ")
    options = {"window": 4, "pruned": True} if variant == "pruned" else {}
    rules = {"on_policy": 0.5} | (rules or {}) if variant == "on policy" else rules
    student = small.student(kind, model, **options)
    return small.training(student, model, texts, folder, rules=rules, **more)


@pytest.fixture
def loop(model, texts, tmp_path):
    return lambda *kind, **more: training(model, texts, tmp_path / "a", *kind, **more)


@pytest.fixture(scope="module")
def uninterrupted(model, texts, tmp_path_factory):
    """Return the training of a kind that never stopped."""
    loops = {}

    def run(kind):
        if kind not in loops:
            loops[kind] = training(model, texts, tmp_path_factory.mktemp("whole"), kind)
            assert loops[kind].run()
        return loops[kind]

    return run


def steps_saved(folder):
    return [int(path.stem.removeprefix("step-")) for path in checkpoints_in(folder)]


@pytest.mark.parametrize("kind", first(1, KILLED))
def test_a_stopped_training_resumes_with_the_same_bits(kind, loop, uninterrupted):
    answers = iter([False, False, True])
    stopped = loop(kind, stop=lambda: next(answers, True))
    assert not stopped.run()
    assert 0 < stopped.step < 8
    resumed, whole = loop(kind), uninterrupted(kind)
    assert resumed.run()
    lines, expected = ([p.to_json() for p in c.evaluations[1:]] for c in (resumed, whole))
    assert lines == expected
    for name, weight in small.weights(whole).items():
        assert torch.equal(weight, resumed.student.network.state_dict()[name]), name
    assert steps_saved(resumed.folder) == [6, 8]


@pytest.mark.parametrize("kind", first(1, ("mlp", *small.KINDS)))
def test_every_kind_learns(kind, loop):
    rate = 2e-3 if kind in ("draft", "falcon") else 1e-2
    made = loop(kind, rules={"rate": rate, "steps": 16, "evaluations": 2})
    assert made.run()
    assert made.chosen.tau() > made.evaluations[0].tau()


def test_a_loss_that_is_no_number_keeps_earlier_checkpoints(loop):
    def poison():
        if made.step == 5:
            next(made.student.network.parameters()).data.fill_(float("nan"))
        return False

    made = loop(stop=poison)
    with pytest.raises(DataError):
        made.run()
    assert steps_saved(made.folder) == [2, 4]


def poor(reach):
    """Return the gain of a drafter that cannot pay."""
    return Gain(0.5 + 0.1 * sum(reach), 1)


@pytest.mark.parametrize(
    ("changes", "best_gain", "option"),
    [({"rate": 1e-9, "patience": 3}, None, "patience"), ({"worth": 1.0}, poor, "worth")],
    ids=["patience", "worth"],
)
def test_a_training_that_does_not_pay_ends_and_can_be_resumed(loop, changes, best_gain, option):
    rules = {"steps": 40, "evaluations": 20, **changes}
    made = loop(rules=rules, best_gain=best_gain)
    assert made.run()
    assert made.ended.endswith(f"`resume` `{option}` 0")
    assert 6 <= made.step < 40
    again = loop(rules=rules, best_gain=best_gain)
    assert again.run()
    assert (again.step, again.ended) == (made.step, made.ended)
    again = loop(rules={**rules, option: 0}, best_gain=best_gain, stop=lambda: True)
    assert not again.run()
    assert again.step > made.step


def test_reach_is_extrapolated_along_a_line_over_the_logarithm_of_steps():
    def curve(steps, values):
        pairs = zip(steps, values, strict=True)
        return [Evaluation(step=step, reach=(Share(value, 0, 1),)) for step, value in pairs]

    steps = [1, 2, 4, 8, 16, 32]
    rising = curve(steps, [0.1 + 0.05 * i for i in range(6)])
    assert extrapolate_reach(rising, 64) == [pytest.approx(0.1 + 0.05 * 6)]
    assert extrapolate_reach(rising[:4], 8) is None
    assert extrapolate_reach(curve(steps, [0.1 * 2**i for i in range(6)]), 64) == [1.0]
    flat = curve(range(12), [0.1] * 12)
    assert extrapolate_reach(flat[:11], 34) is None  # the first third of the steps
    assert extrapolate_reach(flat, 33) == [pytest.approx(0.1)]


def test_a_batch_is_a_function_of_its_step(texts):
    batches = Batches(texts, 60, 1)
    seen = [i for step in range(batches.epoch) for i in batches.chosen(step)]
    assert sorted(seen) == list(range(10))
    assert batches.chosen(7) == Batches(texts, 60, 1).chosen(7)
    parts = batches.parts(0, 20)
    assert sorted(i for numbers in parts for i in numbers) == sorted(batches.chosen(0))


@pytest.mark.parametrize(("kind", "passes"), [("draft", 0), ("medusa", 1)])
def test_a_loss_of_tokens_runs_the_target_only_for_hidden_states(kind, passes, loop):
    made = loop(kind, loss="ce", rules={"micro_tokens": 1000})
    taught = []
    teach = made.teacher.teach
    made.teacher.teach = lambda batch: taught.append(batch) or teach(batch)
    made.add_gradients(0)
    assert len(taught) == passes


def test_on_policy_gradients_are_those_of_the_students_own_texts(model, loop, texts):
    made = loop("draft", rules={"on_policy": 1.0})
    network = made.student.network.eval()
    loss = made.add_gradients(0)
    gradients = {name: weight.grad.clone() for name, weight in network.named_parameters()}
    network.zero_grad()

    own = list(texts[:8])
    for numbers in made.batches.parts(0, RULES["micro_tokens"]):
        written = continue_texts(
            network,
            [texts[i][0] for i in numbers],
            most=max(len(texts[i][1]) for i in numbers),
            warp=Warp(),
            ends=frozenset(),
            vocab=small.VOCAB,
            seed=numbers[0] * 2 + 1,
        )
        for i, text in zip(numbers, written, strict=True):
            own[i] = (texts[i][0], text[: len(texts[i][1])])
    assert own != texts[:8]
    again = loop("draft")
    again.student, again.batches = made.student, Batches(own, 80, 0)
    assert again.add_gradients(0) == pytest.approx(loss, abs=1e-7)
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-7, rtol=1e-5)
