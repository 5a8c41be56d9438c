"""GSM8K: extraction as its authors publish it, prompts, and what a file may hold."""

import json
import tomllib
from pathlib import Path

import pytest

from spsbench.errors import DataError
from spsbench.settings.thoughts import without_thinking
from spsbench.tasks.answers import UNMARKED
from spsbench.tasks.gsm8k import Gsm8k, last_number, marked_number

HERE = Path(__file__).parent
PROBLEMS, ANSWERS = HERE / "gsm8k.jsonl", HERE / "gsm8k_answers.jsonl"
NUMBERS = tomllib.loads((HERE / "gsm8k_numbers.toml").read_text("utf-8"))


def test_the_first_mark_counts_and_the_last_number():
    for text, numbers in (("#### 5\n#### 6", ("5", "6")), ("#### 1,500 and 3", ("1500", "3"))):
        assert (marked_number(text), last_number(text)) == numbers
    assert marked_number("#### none") is None


def test_plain_prompts_have_two_examples_and_messages_the_question_alone():
    task = Gsm8k(str(PROBLEMS))
    first = next(task.samples(lambda sample: True))
    asked = next(task.instruct().samples(lambda sample: True))
    assert first.prompt.count("Question:") == 3
    assert first.prompt.endswith("\nAnswer:")
    assert asked.prompt.startswith("A baker")
    assert "####" in asked.prompt
    assert task.prompt_version != task.instruct().prompt_version
    assert len(list(task.samples(lambda sample: True))) == 20


@pytest.mark.parametrize("row", [{"question": "?", "answer": "so 4"}, {"answer": "#### 4"}])
def test_a_row_without_its_number_is_refused(row, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError):
        Gsm8k(str(file))


def test_twenty_answers_of_smollm2_are_judged_by_their_numbers():
    """Greedy answers of SmolLM2-135M-Instruct, asked in its chat template: all are wrong."""
    marked = ["96", "12", *[None] * 5, "1", None, "100", "42", "2", *[None] * 3, "200"]
    marked += [None, None, "1", None]
    task = Gsm8k(str(PROBLEMS))
    samples = list(task.samples(lambda sample: True))
    answers = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    assert [marked_number(answer["text"]) for answer in answers] == marked
    scores = [task.score(samples[answer["problem"]], answer["text"]) for answer in answers]
    assert sum(score["exact_match"] + score["exact_match_last"] for score in scores) == 0


def test_the_solutions_of_the_file_are_right_and_a_changed_number_is_wrong():
    task = Gsm8k(str(PROBLEMS))
    rows = [json.loads(line) for line in PROBLEMS.read_text().splitlines()]
    for sample, row in zip(task.samples(lambda sample: True), rows, strict=True):
        right = {"exact_match": 1.0, "exact_match_last": 1.0, UNMARKED: 0.0}
        assert task.score(sample, row["answer"]) == right
        unmarked = f"so the answer is {sample.reference}."
        assert task.score(sample, unmarked) == right | {"exact_match": 0.0, UNMARKED: 1.0}
        assert sum(task.score(sample, f"{row['answer']}7").values()) == 0


@pytest.mark.parametrize(
    ("text", "number"), [*NUMBERS.items(), ("9" * 5000, "9" * 5000), ("none", None)]
)
def test_the_number_that_a_text_ends_with(text, number):
    assert (marked_number(text) or last_number(text)) == number
    assert not text.startswith("####") or marked_number(text) == number


@pytest.mark.parametrize(
    "answer",
    [
        "#### 1. Find the eggs\n16 - 7 = 9\n#### 2. Find the money\n9 * 2 = 18\n#### 18",
        "#### 18\n\nQuestion: Two and two?\nAnswer: 4\n#### 4",
        "First try: #### 20\nNo, I forgot the muffins.\n#### 18",
        *("**#### 18**", r"#### \boxed{18}", "#### = 18", "####\n18", "#### 18 dollars"),
    ],
)
def test_the_last_line_of_a_mark_and_a_number_is_the_answer_that_was_asked_for(answer, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "?", "answer": "#### 18"}')
    task = Gsm8k(str(file)).instruct()
    (sample,) = task.samples(lambda sample: True)
    assert task.score(sample, answer)["exact_match"] == 1
    assert task.score(sample, answer.replace("18", "81"))["exact_match"] == 0


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        *(("<think>", "</think>"), ("", "</think>"), ("[THINK]", "[/THINK]")),
        ("<|channel|>analysis<|message|>", "<|end|><|channel|>final<|message|>"),
        *(("analysis", "assistantfinal"), ("◁think▷", "◁/think▷"), ("<Thought>", "</Thought>")),
        ("<think>", "[BEGIN FINAL RESPONSE]"),  # the prompt had the beginning, in its own words
        ("Here is my thought process:", "Here is my response:"),
    ],
)
def test_numbers_of_the_thinking_are_no_answer(begin, end):
    task = Gsm8k(str(PROBLEMS)).instruct()
    sample = next(iter(task.samples(lambda sample: True)))
    thought = f"{begin}So #### 1, no\n{end}\n#### {sample.reference}"
    assert set(task.score(sample, thought).values()) == {1.0, 0.0}
    assert task.score(sample, thought)["exact_match"] == 1
    unfinished = task.score(sample, f"{begin or '<think>'}So #### {sample.reference}")
    assert unfinished == {"exact_match": 0, "exact_match_last": 0, UNMARKED: 1}
    assert without_thinking(f"so Here is my response: {begin}".strip()).startswith("so")


def test_reports_count_answers_without_a_mark_and_average_what_tables_show():
    one = {"exact_match": 1.0, "exact_match_last": 1.0, UNMARKED: 1.0}
    assert Gsm8k.combine([[one, one]]) == {"exact_match": [1.0], "exact_match_last": [1.0]}
