"""From flags and files to cells."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from spsbench.benchmark.models import resolve_experiment
from spsbench.errors import UsageError
from spsbench.settings.commands import Planning
from spsbench.settings.experiment import Experiment, TaskPart, expand_tables, read_tables
from spsbench.settings.grid import Sweep
from spsbench.settings.models import DEFAULT_DRAFTER
from spsbench.settings.options import parse
from spsbench.spec import Spec
from spsbench.tasks.xsum import XSum

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "experiments.md"
XSUM = {"task": "xsum:count=3", "data": "mini"}


def requests(**changes):
    return expand_tables([parse(XSUM | changes, Sweep)[0]]).cells


def test_a_sweep_has_one_baseline_and_a_cell_for_each_k():
    made = requests(k="1..8,4,0")  # what is there twice is run once
    assert [cell.k for cell in made] == list(range(9))
    assert len(set(made)) == 9
    assert made[0].drafter == Spec("none")
    assert made[1].draft is not None
    assert {cell.prompt_version for cell in made} == {
        expand_tables([parse(XSUM, Sweep)[0]]).parts[0].part.task.prompt_version
    }


def test_lists_multiply():
    made = requests(k="2,4", setting=("nucleus", "greedy"), verifier=("sps", "block"))
    drafting = [cell for cell in made if cell.k]
    assert len(drafting) == 2 * 2 * 2
    assert {(c.temperature, c.top_p) for c in made} == {(1.0, 0.8), (0.0, 1.0)}
    assert sum(cell.k == 0 for cell in made) == 2  # a baseline drafts with no verifier
    assert [c.k for c in requests(method=("ars",), k="1..8")] == [0]


def test_where_no_k_is_named_drafter_and_target_say_it():
    by_rule = requests(drafter=("topk:depth=6", "ngram"), method="sps")
    assert [cell.k for cell in by_rule] == [6, 4]
    (unasked,) = requests(target="smollm2", method="sps")
    assert (str(unasked.drafter), str(unasked.schedule)) == DEFAULT_DRAFTER["smollm2"]
    named = requests(target="smollm2", method="sps", drafter=("suffix", "eagle3"))
    assert [(str(cell.draft), cell.k) for cell in named] == [
        ("None", 4),
        ("smollm2-eagle3 int8", 4),
    ]


def test_self_int4_is_swept_beside_other_drafters_and_takes_no_other_draft():
    made = requests(drafter=("self:int4", "model", "ngram"), draft="nano-draft", method="sps")
    named = {(str(c.drafter), str(c.draft)) for c in made}
    assert named == {("model", "nano int4"), ("model", "nano-draft"), ("ngram", "nano-draft")}


def test_the_papers_settings_are_those_of_the_task():
    made = expand_tables([Sweep(task="humaneval", setting=("nucleus",))]).cells
    assert {(c.temperature, c.top_p) for c in made} == {(0.8, 0.95)}
    assert made[0].max_new_tokens == 512
    assert "\ndef" in made[0].stop


def test_laws_are_recorded_by_every_arm_of_the_native_loop():
    made = requests(record="laws", k="2")
    assert {str(cell.decoder) for cell in made} == {"native:laws=true"}
    assert len(made) == 2


def test_texts_of_full_length_have_no_end():
    made = requests(ignore_eos=True)
    assert {(cell.ignore_eos, cell.stop) for cell in made} == {(True, ())}
    assert {(cell.ignore_eos, cell.stop) for cell in requests()} == {(False, XSum.stop)}


def test_latency_verifies_at_a_given_rate_and_says_so():
    made = expand_tables([parse({"task": "latency", "weights": "random"}, Sweep)[0]])
    assert {str(c.verifier) for c in made.cells if c.k} == {"synthetic:alpha=0.8"}
    assert all(cell.random for cell in made.cells)
    assert "meaningless" in made.parts[0].part.task.title


def test_a_verifier_that_is_named_is_not_the_task_s():
    asked = {"task": "latency", "weights": "random", "verifier": "sps"}
    made = expand_tables([parse(asked, Sweep)[0]])
    assert {str(cell.verifier) for cell in made.cells if cell.k} == {"sps"}
    asked = {"task": "latency", "decoder": "openai:url=http://127.0.0.1:9", "method": "sps"}
    made = expand_tables([parse(asked, Sweep)[0]])
    assert "synthetic" not in {cell.verifier.name for cell in made.cells}


@pytest.mark.parametrize(
    "changes",
    [
        *({"method": ("beam",)}, {"setting": ("hot",)}, {"limit": 4}, {"record": "all"}),
        *({"samples": 0}, {"repeats": 0}, {"max_new_tokens": 0}, {"task": "xsum:data=mini"}),
        *({"task": "xsum:size=3"}, {"record": "laws", "decoder": ("native", "hf")}),
        *({"drafter": "self:int4", "draft": "nano-draft"}, {"kk": "4"}, {"samples": "many"}),
        *({"target": [1.5]}, {"ignore_eos": 1}, {"k": True}, {"k": [2, 1.5]}, {"seed": []}),
    ],
)
def test_what_cannot_be_meant_is_refused(changes):
    with pytest.raises(UsageError):
        requests(**changes)


@pytest.mark.parametrize("k", ["2,4", [2, 4], ["2", 4], range(2, 5, 2)])
def test_lists_of_numbers_are_taken_as_flags_write_them(k):
    assert [cell.k for cell in requests(k=k)] == [0, 2, 4]
    asked = {"task": "xsum", "k": [2, "4..6"], "seed": [1, 3], "temperature": [0, 0.5]}
    (table,) = parse(asked, Sweep)
    assert (table.k, table.seed) == ((2, 4, 5, 6), (1, 3))
    assert table.axes["temperature"] == (0.0, 0.5)
    assert parse({"k": [1, 3]}, Planning)[0].k == (1, 3)
    for words in "ars,sps", ["ars,sps"], ["ars", "sps"]:
        assert parse({"task": "xsum", "method": words}, Sweep)[0].method == ("ars", "sps")


def test_the_example_of_the_page_is_an_experiment(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "e.toml").write_text(example)
    top, parts = read_tables(tmp_path / "e.toml")
    title = top.pop("title")
    first, second = (parse(top | part, Sweep, where="e.toml")[0] for part in parts)
    assert (title, first.seed) == ("K and temperature on my prompts", (1,))
    assert first.k == (2, 4)
    assert first.axes["temperature"] == (0.0, 0.8)
    assert second.setting == ("nucleus",)


def test_a_file_that_is_no_experiment_is_refused(tmp_path):
    for content in ("k = ", "k = 1\nk = 2\n", "part = 3\n"):
        (tmp_path / "e.toml").write_text(content)
        with pytest.raises(UsageError):
            read_tables(tmp_path / "e.toml")


@pytest.mark.parametrize(
    "name", ["table1", "table1-gpt2", "figure1", "figure1-gpt2", "figure1-smollm2"]
)
def test_the_files_that_come_with_it_are_experiments(name):
    top, parts = read_tables(Path(__file__).parents[2] / "configs" / f"{name}.toml")
    title, paper = top.pop("title"), top.pop("paper")
    tables = [parse(top | part, Sweep, where=name)[0] for part in parts]
    offline = [replace(table, data="mini") if table.data else table for table in tables]
    made = expand_tables(offline, whole=Experiment(title=title, paper=paper))
    assert made.whole.described()["paper"] is True
    assert {request.part.sample_seed for request in made.parts} == {None}  # the head of the data
    rows = [(c.task.name, c.k, c.temperature, c.top_p) for c in made.cells if c.task]
    if name.startswith("table1"):
        assert rows == [
            ("xsum", 0, 1.0, 0.8),
            ("xsum", 4, 1.0, 0.8),
            ("xsum", 0, 0.0, 1.0),
            ("xsum", 4, 0.0, 1.0),
            ("humaneval", 0, 0.8, 0.95),
            ("humaneval", 4, 0.8, 0.95),
        ]
    else:
        lines = [("xsum", 1.0, 0.8), ("xsum", 0.0, 1.0), ("humaneval", 0.8, 0.95)]
        assert rows == [(task, k, *sampling) for task, *sampling in lines for k in range(9)]


def test_a_draw_of_prompts_is_described_and_restored():
    table = parse({"task": "humaneval", "limit": 3, "k": "2"}, Sweep)[0]
    (plain,) = resolve_experiment(expand_tables([table])).parts
    assert "sample_seed" not in plain.described()  # as in the runs that were made before it
    (drawn,) = resolve_experiment(expand_tables([replace(table, sample_seed=7)])).parts
    assert drawn.described()["sample_seed"] == 7
    assert [cell.id for cell in drawn.cells] == [cell.id for cell in plain.cells]
    cells = {cell.id: cell for cell in drawn.cells}
    for part in (plain, drawn):
        assert (
            TaskPart.from_described(part.described(), cells, Path()).sample_seed == part.sample_seed
        )
    with pytest.raises(UsageError):
        expand_tables([replace(table, limit=None, sample_seed=7)])
