"""Columns of a model's own weights, in numbers."""

import numpy as np
import pytest

from spsbench.errors import DataError
from spsbench.extensions.check.columns import END
from spsbench.extensions.check.greedy import check_same_model, expect_by_weights
from spsbench.extensions.check.weights import Cut, LocalModel, cut_probs
from spsbench.serving.engines import Answer

LOGITS = np.array([[2.0, 1.0, 0.0, -1.0, -1.0], [0.0, 1.0, 2.0, -1.0, 0.5]])
NEAR_TIE = LOGITS + np.array([[0.0] * 5, [0.0, 1.1, 0.0, 0.0, 0.0]])
TEXTS = ["a", "b", "c", "d", None]


def weights(logits=LOGITS, texts=TEXTS, ends=(4,), **more):
    def score(prompt, tokens):
        rows = [logits[min(i, len(logits) - 1)] for i in range(len(tokens))]
        return np.array(rows).reshape(len(tokens), logits.shape[1])

    def encode(text):
        return [ord(letter) for letter in text]

    return LocalModel("w", score, encode, encode, texts, frozenset(ends), **more)


def probs(row, temperature=1.0):
    chances = np.exp(LOGITS[row] / temperature)
    return chances / chances.sum()


def answer(text, ids=None, finish="length", own=None):
    return Answer(text, list(text), own or [-1.0] * len(text), [], finish, ids=ids)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_masses_are_the_probs_at_the_temperature(temperature):
    text = weights().columns([0], answer("ab", [0, 1]), temperature)
    assert text.keys[0] == ["#0", "#1", "#2", "#3", "#4", END]
    assert text.mass[0] == pytest.approx([*probs(0, temperature)[:4], 0, probs(0, temperature)[4]])
    assert text.emitted.tolist() == [0, text.keys[1].index("#1")]
    assert cut_probs(LOGITS, temperature, Cut())[0][1] == pytest.approx(probs(1, temperature))


def test_the_end_that_is_not_listed_is_one_more_token():
    text = weights().columns([0], answer("a", [0], finish="stop"), 1.0)
    assert text.emitted.tolist() == [0, 5]
    assert text.tokens == ["#0", END]
    assert text.mass[1, 5] == pytest.approx(probs(1)[4])
    listed = weights().columns([0], answer("a", [0, 4], finish="stop"), 1.0)
    assert listed.emitted.tolist() == [0, 5]
    assert len(weights().columns([0], answer("a", [0]), 1.0)) == 1


def test_a_text_of_several_tokens_is_the_rest_and_the_last_of_its_text():
    scored = weights(texts=["a", "b", "a", "", "\ufffd"], ends=())
    text = scored.columns([0], answer("bab"), 1.0)
    assert len(text) == 2
    named = dict(zip(text.keys[0], text.mass[0].tolist(), strict=True))
    assert {key: mass for key, mass in named.items() if mass} == {"#1": pytest.approx(probs(0)[1])}
    assert text.emitted.tolist() == [0, 6]


def test_what_the_draft_prefers_is_a_set_with_its_rest():
    drafted = weights(LOGITS[:, ::-1])
    text = weights().columns([0], answer("a", [0]), 1.0, drafted)
    own, other = probs(0), probs(0)[::-1]
    by_key = {f"#{i}": bool(other[i] > own[i]) for i in range(4)} | {END: bool(other[4] > own[4])}
    assert {
        key: bool(text.drafted[0, j]) for j, key in enumerate(text.keys[0]) if key in by_key
    } == by_key
    assert not text.drafted[0, -1]  # nothing is left to the rest


@pytest.mark.parametrize(
    ("text", "nats", "logits", "apart"),
    [
        ("ac", (0.0, 0.0), LOGITS, 0.0),
        ("ac", (0.4, 0.4), LOGITS, 0.4),
        ("ac", (0.6, 0.6), LOGITS, None),
        ("ab", (0.0, 0.0), LOGITS, None),  # one token is another, 1 nat likelier
        ("ac", (0.0, 0.0), NEAR_TIE, None),  # so it is where little is lost: half of them differ
    ],
    ids=["same", "rounded", "half a nat", "another choice", "near tie"],
)
def test_weights_that_differ_by_half_a_nat_or_choose_other_tokens_are_refused(
    text, nats, logits, apart
):
    ids = ["abcd".index(letter) for letter in text]
    own = [
        float(np.log(probs(row)[token])) - d
        for row, (token, d) in enumerate(zip(ids, nats, strict=True))
    ]
    scored = weights(logits)
    pairs = [expect_by_weights(scored, [0], answer(text, ids, own=own))]
    if apart is None:
        with pytest.raises(DataError):
            check_same_model(scored, pairs)
    else:
        assert check_same_model(scored, pairs) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("theirs", "count", "ids", "words"),
    [
        ([97], None, [97], ""),
        ([7, 97], None, [7, 97], "puts a BOS before the prompt (id 7)"),
        ([5], None, [5], "other ids"),
        (None, 1, [97], ""),
        (None, None, [97], ""),
        (None, 2, [7, 97], "as the number of its tokens says"),
    ],
)
def test_the_prompt_is_the_servers(theirs, count, ids, words):
    text = answer("a")
    text.prompt_ids, text.prompt_tokens = theirs, count
    own, remark = weights(bos=7).prompt("a", text, chat=False)
    assert own == ids
    assert words in remark
    assert bool(words) is bool(remark)
