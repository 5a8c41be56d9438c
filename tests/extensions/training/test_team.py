"""Processes that learn together: the gradients of one, the same course, one end for all.

In float64, where the order in which a sum is formed is no matter.
"""

import os
import signal
from dataclasses import replace

import pytest
import torch

from spsbench.errors import DataError
from spsbench.extensions.training.batches import Batches
from spsbench.extensions.training.generation import Writer
from spsbench.extensions.training.gradients import Gradients
from spsbench.extensions.training.loop import TrainingLoop
from spsbench.extensions.training.losses import hybrid
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.prompts import Overlap, prompts_of
from spsbench.extensions.training.teacher import Teacher
from spsbench.extensions.training.texts import write_texts
from spsbench.parallel.process_group import LostRankError, ProcessGroup, SingleProcess
from tests.extensions.training import small
from tests.extensions.training.learners import learn
from tests.extensions.training.test_course import RULES
from tests.folders import byte_tokenizer, random_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return small.target()


@pytest.fixture(scope="module")
def texts(model):
    return small.texts(model, count=10)


def course(model, texts, folder, group, rules=RULES, **more):
    batches = Batches(texts[:8], 80, 0, CPU)
    held = [small.batch([text]) for text in texts[8:]]
    made = small.student("eagle3", model)
    return TrainingLoop(
        made, Teacher(model, small.VOCAB), batches, held, rules, folder, group=group, **more
    )


def gradients(model, texts, group, rules=RULES):
    """Of the first step: what it reports, and every gradient."""
    made = course(model, texts, None, group, rules)
    loss = made._gradients().add(0, 8)
    network = made.student.network
    return loss, {name: weight.grad.numpy() for name, weight in network.named_parameters()}


def alike(one, two):
    pairs = zip(one.values(), two.values(), strict=True)
    return all(torch.allclose(*map(torch.tensor, pair), rtol=0, atol=1e-14) for pair in pairs)


def test_two_ranks_have_the_gradients_of_one(model, texts):
    """One process does what two do, in parts as small as theirs: twice as many micro batches."""
    loss, alone = gradients(model, texts, SingleProcess())
    found = learn(2, lambda group: gradients(model, texts, group))
    for told, theirs in found:
        assert told == pytest.approx(loss, abs=1e-14)
        assert alike(alone, theirs)
    assert all((found[0][1][name] == found[1][1][name]).all() for name in alone)  # bit for bit


@pytest.mark.slow
@pytest.mark.cluster
def test_gradients_that_are_not_added_would_be_seen(model, texts, monkeypatch):
    monkeypatch.setattr(ProcessGroup, "sum_gradients", lambda self, network: None)
    _, alone = gradients(model, texts, SingleProcess())
    (_, one), _ = learn(2, lambda group: gradients(model, texts, group))
    assert not alike(alone, one)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 3])
def test_a_course_is_that_of_one_process(size, model, texts, tmp_path):
    def run(group, folder):
        made = course(model, texts, folder, group)
        assert made.run()
        return [look.tau for look in made.looks], len(list(folder.glob("*")))

    taus, files = run(SingleProcess(), tmp_path / "one")
    found = learn(size, lambda group: run(group, tmp_path / f"rank-{group.rank}"))
    assert [each[0] for each in found] == [pytest.approx(taus, abs=1e-9)] * size
    assert [each[1] for each in found] == [files] + [0] * (size - 1)  # rank 0 alone writes


@pytest.mark.slow
@pytest.mark.cluster
def test_what_two_ranks_left_one_goes_on_with(model, texts, tmp_path):
    whole = course(model, texts, tmp_path / "whole", SingleProcess())
    assert whole.run()
    left = iter([False, False, True])

    def run(group):
        stop = (lambda: next(left, True)) if group.leads else (lambda: False)
        return course(model, texts, tmp_path / "parts", group, stop=stop).run()

    assert learn(2, run) == [False, False]
    again = course(model, texts, tmp_path / "parts", SingleProcess())
    assert again.run()
    assert again.now.tau == pytest.approx(whole.now.tau, abs=1e-9)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_loss_that_is_no_number_is_said_by_all(model, texts, tmp_path):
    def broken(laws):
        return hybrid(laws) * float("nan")

    def run(group):
        rules = replace(RULES, loss=broken if group.rank == 1 else hybrid)
        return gradients(model, texts, group, rules)

    found = learn(2, run)
    assert all(isinstance(error, DataError) for error in found), found
    assert "the loss is nan (step 1, texts" in str(found[0])


def test_a_rank_that_dies_ends_the_others(model, texts):
    def run(group):
        group.broadcast(None)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return gradients(model, texts, group)

    error, nothing = learn(2, run)
    assert isinstance(error, LostRankError)
    assert "\n" not in str(error)
    assert nothing is None


@pytest.mark.slow
@pytest.mark.cluster
def test_a_rank_that_stands_still_ends_the_others(model, texts):
    """Its connections stay open: the timeout alone tells."""

    def run(group):
        _, other = group.all_gather(os.getpid())
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            return gradients(model, texts, group)
        finally:
            os.kill(other, signal.SIGKILL)

    error, nothing = learn(2, run, timeout=2.0)
    assert isinstance(error, LostRankError)
    assert "a rank has not answered for 2 s (rank 0 waits, `rank_timeout`)" in str(error)
    assert nothing is None


@pytest.mark.slow
@pytest.mark.cluster
def test_texts_are_shared_out_and_the_file_is_the_same(tmp_path):
    model, tokenizer = random_model(), byte_tokenizer()
    asked = HeadTraining(count=70, tokens=6, prompt_tokens=12)  # three batches
    made = {"target": "tiny", "tokenizer": "a", "vocab": len(tokenizer)}

    def write(group, path):
        eos = frozenset({tokenizer.eos_token_id})
        writer = Writer(
            model,
            tokenizer,
            eos,
            len(tokenizer),
            asked,
            False,
            prompts_of(asked, tokenizer, False, Overlap(())),
        )
        return write_texts(path, made, writer, lambda: False, group=group)

    torch.set_num_threads(1)
    assert write(SingleProcess(), tmp_path / "one.jsonl")
    assert learn(2, lambda group: write(group, tmp_path / "two.jsonl")) == [True, True]
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_gradients_of_a_rank_without_a_part_are_none_of_its_own(model, texts):
    """A process alone that is one of none: its group adds nothing."""
    made = course(model, texts, None, SingleProcess())
    parts = Gradients(made.student, made.teacher, made.batches, RULES, SingleProcess())._parts(0)
    assert sorted(i for numbers, _ in parts for i in numbers) == sorted(made.batches.chosen(0))
