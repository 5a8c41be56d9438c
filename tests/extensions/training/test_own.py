"""Steps on a draft model's own texts: a share of them, judged by the target, the same on resume."""

from dataclasses import replace

import pytest
import torch

from spsbench.extensions.training.batches import Batches, OnPolicyTexts
from spsbench.extensions.training.generation import continue_texts
from spsbench.extensions.training.gradients import Gradients
from spsbench.extensions.training.loop import TrainingLoop
from spsbench.extensions.training.teacher import Teacher
from spsbench.loop.sampling import Warp
from tests.extensions.training import small
from tests.extensions.training.test_course import RULES, weights

CPU = torch.device("cpu")


def write(student, prompts, key, most):
    return continue_texts(
        student.network,
        prompts,
        most=most,
        warp=Warp(),
        ends=frozenset(),
        vocab=small.VOCAB,
        seed=key[0] * 1000 + key[1],
    )


def course(model, texts, folder, share, **more):
    batches = Batches(texts[:8], 80, 0, CPU)
    return TrainingLoop(
        small.student("draft", model),
        Teacher(model, small.VOCAB),
        batches,
        [small.batch(texts[8:])],
        replace(RULES, rate=2e-3),
        folder,
        on_policy=OnPolicyTexts(share, write, CPU) if share else None,
        **more,
    )


@pytest.mark.parametrize(
    ("share", "due"), [(0.25, [3, 7]), (0.5, [1, 3, 5, 7]), (1.0, [*range(8)])]
)
def test_a_share_of_the_steps_is_spread_evenly(share, due):
    own = OnPolicyTexts(share, write, CPU)
    assert [step for step in range(8) if own.is_due(step)] == due


def test_the_target_judges_what_the_student_wrote(model, texts):
    """The gradient is that of a batch which has the student's texts in it from the start."""
    made = course(model, texts, None, 1.0)
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
    batches = Batches([own.get(i, texts[i]) for i in range(8)], 80, 0, CPU)
    again = Gradients(made.student, made.teacher, batches, made.rules)
    assert again.add(0, 8) == pytest.approx(loss, abs=1e-7)
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight.grad, found[name], atol=1e-7, rtol=1e-5)


def test_what_was_killed_writes_the_same_texts_again(model, texts, tmp_path):
    whole = course(model, texts, tmp_path / "a", 0.5)
    assert whole.run()
    left = iter([False, False, True])
    assert not course(model, texts, tmp_path / "b", 0.5, stop=lambda: next(left, True)).run()
    again = course(model, texts, tmp_path / "b", 0.5)
    assert again.run()
    for name, weight in weights(whole).items():
        assert torch.equal(weight, again.student.network.state_dict()[name]), name


def test_steps_of_both_kinds_are_timed(model, texts):
    assert course(model, texts, None, 0.5)._probed() == [1, 3, 0]
    assert course(model, texts, None, 1.0)._probed() == [0, 1, 2]
    assert course(model, texts, None, 0.0)._probed() == [0, 1, 2]
