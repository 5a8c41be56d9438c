"""What is a prompt of token ids, and what gets a clear line."""

import numpy
import pytest
import torch

import spsbench
from spsbench.errors import DataError, UsageError
from spsbench.loop.text import PromptError, token_ids


def test_integers_of_any_library_are_ids() -> None:
    for prompt in ([3, 1], (3, 1), numpy.array([3, 1]), torch.tensor([3, 1]), iter([3, 1])):
        ids = token_ids(prompt, rows=4)
        assert ids == [3, 1]
        assert {type(token) for token in ids} == {int}


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([1, 2.0], r"token 1 of the prompt is 2\.0: expected an integer"),
        (torch.tensor([1.0, 2.0]), r"token 0 of the prompt is tensor\(1\.\): expected an integer"),
        (numpy.array([1.5]), "token 0 of the prompt is .*1.5"),
        (torch.tensor([[1, 2, 3]]), "token 0 .*expected an integer. Give one list"),
        ([[1, 2]], r"token 0 of the prompt is \[1, 2\]"),
        (["a"], "token 0 of the prompt is 'a'"),
        ([1, None], "token 1 of the prompt is None"),
        ([1, -1], "token 1 of the prompt is -1: expected an id from 0 to 3"),
        ([4], "token 0 of the prompt is 4: expected an id from 0 to 3"),
        (7, "the prompt is of type int: expected text or a list"),
        ([], "the prompt has no tokens"),
        ([None] * 3 + ["x" * 900], "token 0"),
    ],
    ids=str,
)
def test_what_is_no_prompt(prompt: object, said: str) -> None:
    with pytest.raises(PromptError, match=said) as caught:
        token_ids(prompt, rows=4)
    assert isinstance(caught.value, DataError)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("prompt", [[1.0, 2.0], [], torch.tensor([1.0])], ids=str)
def test_the_library_refuses_them_too(prompt: object) -> None:
    with pytest.raises(PromptError):
        spsbench.generate(prompt, target="nano", max_new_tokens=2)


def test_the_library_refuses_an_empty_text() -> None:
    with pytest.raises(UsageError, match="the prompt is empty: expected text, or token ids"):
        spsbench.generate("", target="nano")


def test_an_id_that_the_model_lacks() -> None:
    with pytest.raises(PromptError, match="token 1 of the prompt is 999999: expected an id from 0"):
        spsbench.generate([1, 999999], target="nano", max_new_tokens=2)
