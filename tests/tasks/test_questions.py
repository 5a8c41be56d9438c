"""MT-Bench, Spec-Bench, SPEED-Bench: their rows, categories and turns, and what is refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spsbench.errors import DataError
from spsbench.plugins import make
from spsbench.spec import Spec
from spsbench.tasks.questions import MtBench, SpecBench, SpeedBench
from tests.tasks.rows import always, written

ROWS = [
    {"question_id": 81, "category": "writing", "turns": ["a poem", "shorter"]},
    {"question_id": 101, "category": "math", "turns": ["1 + 1?", "2 + 2?"], "reference": ["2"]},
    {"question_id": 161, "category": "translation", "turns": ["Guten Tag"]},
]


@pytest.mark.parametrize("name", ["mtbench", "specbench", "speedbench"])
def test_questions_are_asked_turn_by_turn_and_not_scored(name, tmp_path):
    task = make("tasks", Spec(name, (("data", written(tmp_path, *ROWS)),)))
    plain, asked = list(task.samples(always)), list(task.instruct().samples(always))
    assert [sample.prompt for sample in plain] == ["a poem", "1 + 1?", "Guten Tag"]
    assert [sample.prompt for sample in asked][:3] == ["a poem", "shorter", "1 + 1?"]
    assert asked[1].after == "81"
    assert asked[1].group == asked[0].group
    assert (task.metrics, task.score(plain[1], "2")) == ((), {})
    assert task.name == name


def test_spec_bench_has_one_group_of_mt_benchs_categories(tmp_path):
    path = written(tmp_path, *ROWS)
    groups = {
        kind: [sample.group for sample in kind(path).samples(always)]
        for kind in (MtBench, SpecBench)
    }
    assert groups[MtBench] == ["writing", "math", "translation"]
    assert groups[SpecBench] == ["mt_bench", "mt_bench", "translation"]
    assert SpecBench(path).title == f"Spec-Bench, 3 questions of 2 categories ({path})"
    task = SpecBench(path, category="mt_bench")
    assert [sample.id for sample in task.samples(always)] == ["81", "101"]
    with pytest.raises(DataError):
        SpecBench(path, category="writing")


def test_speed_bench_is_read_from_the_parquet_file_of_its_script(tmp_path):
    row = {"question_id": "q1", "category": "coding", "sub_category": "python", "turns": ["def f"]}
    row |= {"source": "HLE", "src_id": "1", "difficulty": "hard", "multiturn": False}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test.parquet")
    task = SpeedBench(str(tmp_path / "test.parquet"))
    (sample,) = task.samples(always)
    assert (sample.id, sample.group, task.max_new_tokens) == ("q1", "coding", 4096)


@pytest.mark.parametrize(
    "row",
    [
        {"id": "1", "prompt": "a"},
        {"question_id": 1, "turns": ["a"]},
        ROWS[2] | {"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"]},
    ],
)
def test_rows_of_another_kind_and_placeholders_are_named(row, tmp_path):
    with pytest.raises(DataError):
        SpeedBench(written(tmp_path, ROWS[0], row))


def test_only_mt_bench_is_on_the_hub():
    assert MtBench.online({})
    assert not MtBench.online({"data": "question.jsonl"})
    assert not SpecBench.online({})
    with pytest.raises(ValueError):
        SpecBench()
