"""The target's own texts: made in batches, gone on with, and none of a benchmark."""

import json

import pytest
import torch

from spsbench.errors import DataError, MismatchError, MissingError, UsageError
from spsbench.extensions.training import prompts
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.prompts import BenchmarkIndex, collect_prompts, excluded_sources
from spsbench.extensions.training.texts import (
    Writer,
    check_texts_target,
    continue_texts,
    read_head,
    read_texts,
    write_texts,
)
from spsbench.loop.sampling import Warp
from spsbench.messages import lines_to
from spsbench.tasks.humaneval import HumanEval
from tests.extensions.training import small
from tests.folders import END, TEMPLATE, byte_tokenizer, random_model

MADE = {"target": "tiny", "tokenizer": "a", "vocab": 290}
ASKED = HeadTraining(count=40, tokens=6, prompt_tokens=12)


@pytest.fixture(scope="module")
def target():
    return random_model()


def writer(target, asked=ASKED, chat=False, tokenizer=None):
    tokenizer = tokenizer or byte_tokenizer(TEMPLATE if chat else None)
    eos = frozenset({tokenizer.eos_token_id})
    return Writer(
        target,
        tokenizer,
        eos,
        len(tokenizer),
        asked,
        chat,
        collect_prompts(asked, tokenizer, chat, BenchmarkIndex(())),
    )


def test_a_batch_is_a_function_of_the_seed_and_its_number(target):
    one, two = writer(target), writer(target)
    assert one.batch(1) == two.batch(1)
    assert one.batch(0) != one.batch(1)
    assert one.batches == 2
    assert all(prompt == [0] for prompt, _ in one.batch(0))


def test_a_text_is_drawn_from_the_target(target):
    """At temperature 0 it is the greedy text of transformers, whatever stands beside it."""
    made = writer(target, HeadTraining(count=4, tokens=6, temperature=0.0))
    ids = torch.tensor([[0]])
    for _ in range(6):
        ids = torch.cat([ids, target(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    expected = ids[0, 1:].tolist()
    expected = expected[: expected.index(0) + 1] if 0 in expected else expected
    assert [text for _, text in made.batch(0)] == [expected] * 4


def test_what_was_stopped_goes_on_and_is_the_same_file(target, tmp_path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    assert write_texts(whole, MADE, writer(target), lambda: False)
    calls = iter([False, True])
    assert not write_texts(parts, MADE, writer(target), lambda: next(calls))
    partial = parts.with_suffix(".partial")
    partial.write_bytes(partial.read_bytes() + b'{"batch": 1, "te')  # torn by a kill
    assert write_texts(parts, MADE, writer(target), lambda: False)
    assert parts.read_bytes() == whole.read_bytes()
    with pytest.raises(MismatchError):
        write_texts(parts, {**MADE, "vocab": 5}, writer(target), lambda: False)
    assert len(read_texts(whole, None, str).texts) > 1


def test_texts_of_another_tokenizer_are_refused(target, tmp_path):
    path = tmp_path / "texts.jsonl"
    write_texts(path, MADE, writer(target), lambda: False)
    with pytest.raises(DataError):
        check_texts_target(read_head(path), {**MADE, "tokenizer": "b", "target": "other"}, path)
    check_texts_target(read_head(path), {**MADE, "files": "elsewhere"}, path)
    with pytest.raises(MissingError):
        read_head(tmp_path / "none.jsonl")
    (tmp_path / "other.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(DataError):
        read_head(tmp_path / "other.jsonl")


@pytest.mark.parametrize("text", [[0], [2, 290]], ids=["ends at once", "no token"])
def test_texts_that_teach_nothing_are_refused(text, tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = {"batch": 0, "texts": [{"prompt": [1], "text": text}]}
    path.write_text(json.dumps({"schema": 1, **MADE}) + "\n" + json.dumps(rows) + "\n")
    with pytest.raises(DataError):
        read_texts(path, None, str)


@pytest.fixture(scope="module")
def overlap():
    return BenchmarkIndex(["humaneval"])


@pytest.fixture(scope="module")
def problem():
    return next(iter(HumanEval().samples(lambda prompt: True)))


def test_a_benchmarks_prompt_is_known_again(overlap, problem):
    assert overlap.of(problem.prompt) == f"humaneval {problem.id}"
    assert overlap.of("  ".join(problem.prompt.split())) == f"humaneval {problem.id}"
    assert overlap.of(f"{problem.prompt}\n    pass\n") == f"humaneval {problem.id}"
    assert overlap.of("from typing import List\n\n\ndef mine(xs: List[int]) -> int:") is None


def test_what_a_user_will_test_on_is_known_again(tmp_path, monkeypatch):
    words = [f"word{i}" for i in range(60)]
    articles, plain = tmp_path / "articles.jsonl", tmp_path / "plain.txt"
    articles.write_text(json.dumps({"id": "a", "document": " ".join(words), "summary": "x"}))
    plain.write_text("short\n\n" + " ".join(words[::-1]))
    found = BenchmarkIndex([str(articles), str(plain)])
    assert found.of(" ".join(words[:30])) == f"{articles} 1"  # all of its own words
    assert found.of(" ".join([*words[10:50], *map(str, range(99))])) == f"{articles} 1"
    assert found.of(" ".join([*words[:20], *map(str, range(99))])) is None
    assert found.of(" ".join(words[::-1])) == f"{plain} paragraph 2"
    assert found.of("Short") is None
    assert excluded_sources(["x"])[-1] == "x"
    monkeypatch.setattr("spsbench.extensions.training.prompts.cached_file", lambda *_: articles)
    assert excluded_sources([]) == ["humaneval", "xsum:data=mini", "xsum:data=hub"]


def test_prompts_of_a_benchmark_are_refused(overlap, problem, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": problem.prompt}) + "\n")
    for named in (str(path), "humaneval"):
        with pytest.raises(DataError):
            prompts.collect_prompts(
                HeadTraining(prompts=(named,)), byte_tokenizer(), False, overlap
            )


def test_prompts_of_a_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("the cat sat on the mat\n\n\nthe dog ran\n\nthe cat sat on the mat\n")
    asked = HeadTraining(prompts=(str(path),))
    found = prompts.collect_prompts(asked, byte_tokenizer(), False, BenchmarkIndex(()))
    assert [byte_tokenizer().decode(ids).removeprefix(END) for ids in found] == [
        "the dog ran",
        "the cat sat on the mat",
    ]
    with pytest.raises(MissingError):
        prompts.collect_prompts(
            HeadTraining(prompts=(str(tmp_path / "no.txt"),)),
            byte_tokenizer(),
            False,
            BenchmarkIndex(()),
        )
    with pytest.raises(UsageError):
        prompts.uses_chat(byte_tokenizer(), "on")


def test_a_source_beyond_the_count_is_named_and_not_read(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{name} {i}" for i in range(12)))
    asked = HeadTraining(prompts=(str(tmp_path / "a.txt"), str(tmp_path / "b.txt")), count=9)
    said: list[str] = []
    with lines_to(said.append):
        found = prompts.collect_prompts(asked, byte_tokenizer(), False, BenchmarkIndex(()))
    assert len(found) == 9
    assert any("b.txt" in line for line in said)


def test_long_prompts_of_a_chat_are_left_out_and_counted(tmp_path):
    path, tokenizer = tmp_path / "prompts.jsonl", byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    path.write_text('{"prompt": "a"}\n{"prompt": "a long question"}\n{"prompt": "another one"}\n')
    asked = HeadTraining(prompts=(str(path),), prompt_tokens=5)
    said: list[str] = []
    with lines_to(said.append):
        (prompt,) = prompts.collect_prompts(asked, tokenizer, True, BenchmarkIndex(()))
    assert tokenizer.decode(prompt) == "a"
    assert any(" 2 prompts " in line for line in said)


def test_references_are_texts_of_people_after_their_prompts(overlap, problem, tmp_path):
    path, tokenizer = tmp_path / "people.jsonl", byte_tokenizer()
    row = {"id": "a", "prompt": "the cat", "reference": " sat on the mat"}

    def found(row, **more):
        path.write_text(json.dumps(row) + "\n")
        asked = HeadTraining(references=(str(path),), **more)
        return prompts.references_of(asked, tokenizer, False, overlap)

    ((prompt, text),) = found(row)
    assert tokenizer.decode(text) == " sat on the mat" + END
    assert tokenizer.decode(prompt).removeprefix(END) == "the cat"
    ((prompt, text),) = found(row, tokens=5)
    assert len(text) == 5
    said: list[str] = []
    with lines_to(said.append):
        assert found(row, prompt_tokens=len(prompt) - 1) == []  # no answer after half a question
    assert any(" 1 prompts " in line for line in said)
    with pytest.raises(DataError):
        found({**row, "reference": None})
    with pytest.raises(DataError):
        found({**row, "reference": problem.prompt})


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
