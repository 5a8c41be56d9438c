"""The kept answers of a check: whole after a kill, refused where they are damaged."""

import json
import math
from dataclasses import replace

import pytest

from spsbench.errors import DataError, InUseError, MismatchError, UsageError, WriteError
from spsbench.extensions.check.journal import Journal
from spsbench.serving.engines import Answer
from spsbench.store.log import Log
from tests.extensions.check.stubs import Plan

PLAN = Plan("http://localhost:1")
ANSWER = Answer("a", ["a"], [-0.5], [[("a", -0.5), ("b", -math.inf)]], "length")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "kept.jsonl"
    journal = begun(path)
    for number in range(3):
        journal.keep(f"server/greedy/{number}", ANSWER.to_json())
    journal.close()
    return path


def begun(path, plan=PLAN, **how):
    journal = Journal(path, **how)
    journal.begin(plan)
    return journal


def resumed(path, plan=PLAN):
    return begun(path, plan, resume=True)


def test_the_file_appears_with_the_first_answer(tmp_path):
    path = tmp_path / "kept.jsonl"
    journal = begun(path)
    assert list(tmp_path.iterdir()) == []
    journal.keep("server/greedy/0", ANSWER.to_json())
    assert "server/greedy/0" in path.read_text()
    journal.close()
    with pytest.raises(UsageError):
        Journal(path)


def test_answers_come_back_as_they_were(path):
    journal = resumed(path)
    assert len(journal) == 3
    assert "server/greedy/2" in journal
    answer = journal.read("server/greedy/2", Answer.from_json)
    assert answer.stated == [[("a", -0.5), ("b", -9999.0)]]  # as engines write it
    assert replace(answer, stated=ANSWER.stated) == ANSWER


def test_every_flipped_bit_is_refused_or_cuts_the_end(path):
    content, kept = path.read_bytes(), [f"server/greedy/{number}" for number in range(3)]
    for place in [*range(0, len(content), 41), len(content) - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            journal = resumed(path)
        except DataError:
            continue
        assert place == len(content) - 1  # the end of the last line alone: it counts as torn
        assert [key in journal for key in kept] == [True, True, False]


def test_a_kill_in_a_write_loses_that_answer_alone(path):
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for place in (0, 1, 40, ends[0] - 1, ends[0], ends[2] + 30, ends[3] - 1, ends[3]):
        path.write_bytes(content[:place])
        journal = resumed(path)
        assert len(journal) == max(0, sum(end <= place for end in ends) - 2)  # header, options
        journal.keep("server/greedy/9", 1)
        journal.close()
        assert "server/greedy/9" in resumed(path)


@pytest.mark.parametrize(
    "content",
    [
        b'{"plan": [1]}\n',
        b"[[[[",
        b"{}\n",
        b"a prompt without a line end",
        b"[" * 100_000,
        b"\xff\n",
    ],
)
def test_another_file_is_refused_and_not_touched(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError):
        resumed(path)
    assert path.read_bytes() == content
    assert len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize(
    "head",
    [{"sps_check": 1, "plan": PLAN.header()}, {"sps_check": 2, "plan": [1]}, {"sps_check": 2}],
)
def test_a_head_of_another_kind_is_refused(tmp_path, head):
    with Log(path := tmp_path / "kept.jsonl") as log:
        log.append(head)
    with pytest.raises(DataError):
        resumed(path)


@pytest.mark.parametrize("line", [{"key": "a"}, {"key": 5, "value": 1}, {"value": 1}])
def test_a_line_without_an_answer_is_refused(path, line):
    with Log(path) as log:
        log.append(line)
    with pytest.raises(DataError):
        resumed(path)


@pytest.mark.parametrize(
    "value", [{}, None, 5, [], {"stated": 5}, {"stated": [[1]]}, {"text": "a"}]
)
def test_an_answer_of_another_version_is_named(path, value):
    with Log(path) as log:
        log.append({"key": "server/greedy/3", "value": value})
    with pytest.raises(DataError):
        resumed(path).read("server/greedy/3", Answer.from_json)


def test_one_check_writes_a_file(path):
    first, other = resumed(path), resumed(path)
    first.keep("a", 1)
    with pytest.raises(InUseError):
        other.keep("b", 2)
    first.close()
    one, two = (begun(path.with_name("new.jsonl")) for _ in range(2))
    one.keep("a", 1)
    with pytest.raises(InUseError):
        two.keep("b", 2)
    one.close()
    with pytest.raises(UsageError):
        two.keep("b", 2)
    two.close()
    assert len(resumed(path.with_name("new.jsonl"))) == 1


def test_other_options_are_refused_with_both_values(path):
    with pytest.raises(MismatchError):
        resumed(path, replace(PLAN, max_new_tokens=8))
    assert len(resumed(path, replace(PLAN, only=("law",), bias=0.1))) == 3


def test_a_place_that_cannot_be_written_is_refused_before_any_request(tmp_path):
    for path in (tmp_path / "none" / "kept.jsonl", tmp_path):
        with pytest.raises((WriteError, UsageError)):
            Journal(path)


def test_without_a_file_nothing_is_written(tmp_path):
    journal = begun(None)
    journal.keep("a", json.loads("[1, -Infinity]"))
    assert len(journal) == 1
    journal.close()
