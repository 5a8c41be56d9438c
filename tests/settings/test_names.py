"""What cells are called: no two that differ have one name, in any table, file or page."""

import csv as reader
import io

import pytest

from spsbench.metrics.summaries import summaries
from spsbench.reports.columns import brief
from spsbench.reports.figure1 import lines_by_k
from spsbench.reports.page.data import aggregate_tables, run_names, to_read
from spsbench.reports.remarks import run_findings
from spsbench.reports.reporter import Report, Title
from spsbench.reports.run_tables import make_table
from spsbench.reports.table import report_text
from spsbench.reports.text import body, csv, labels
from spsbench.settings.labels import Names, method
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from tests.simulation import cell, run

SCHEMA = '{"type": "object", "properties": {"a_long_name_of_a_field": {"type": "%s"}}}'
LONG = "a-target-in-a-folder-with-a-long-name-"


def targets(*changes):
    return [{"target": ModelSpec(**{"id": "large", **change})} for change in changes]


PAIRS = {
    "decoder": ({"decoder": Spec("native")}, {"decoder": Spec("hf")}),
    "dtype": targets({"dtype": "float32"}, {"dtype": "bfloat16"}),
    "engine": targets({"engine": Spec("fast")}, {"engine": Spec("eager")}),
    "random weights": targets({}, {"weights": "random"}),
    "revision": targets({"revision": "one"}, {"revision": "two"}),
    "length": ({"max_new_tokens": 24}, {"max_new_tokens": 32}),
    "end": ({"ignore_eos": False}, {"ignore_eos": True}),
    "regex": ({"regex": "a+"}, {"regex": "b+"}),
    "regex or none": ({}, {"regex": "a+"}),
    "schema": ({"json_schema": SCHEMA % "number"}, {"json_schema": SCHEMA % "string"}),
    "grammar": ({"grammar": 'start: "a"'}, {"grammar": 'start: "b"'}),
    "stop": ({"stop": ("a",)}, {"stop": ("a", "b")}),
    "system": ({"chat": True, "system": "Be brief."}, {"chat": True, "system": "Be kind."}),
    "seed": ({"seed": 1}, {"seed": 2}),
    "long target": targets({"id": LONG * 5 + "one"}, {"id": LONG * 5 + "two"}),
}


def of(name):
    return [cell(k, **{"max_new_tokens": 24, **one}) for one in PAIRS[name] for k in (0, 4)]


def report(cells, width=160):
    records = [record for each in cells for record in run(each, 0.7, 2)]
    made = make_table(summaries(cells, records), Title("run"), records=lambda: iter(records))
    return Report("run", [made], width=width)


@pytest.mark.parametrize("name", PAIRS)
def test_cells_that_differ_have_different_names_everywhere(name):
    cells = of(name)
    made = report(cells)
    text = body(made.tables[0], brief)
    told = [tuple(row[: text.names]) for row in text.rows]
    assert len(set(told)) == 4
    columns = ("task", "target", "draft", "method", "setting", "engine", "seed", "options")
    rows = list(reader.DictReader(io.StringIO(csv(made))))
    assert len({tuple(row[column] for column in columns) for row in rows}) == 4
    traces, _ = to_read(aggregate_tables(made.tables), run_names(made.tables))
    assert len({trace["group"] + trace["name"] for trace in traces}) == 8  # of 2 prompts
    assert sorted(map(len, lines_by_k(made.tables[0].rows).values())) == [2, 2]
    assert not any("(2)" in label for label in lines_by_k(made.tables[0].rows))


@pytest.mark.parametrize("width", [50, 80, 160])
def test_the_terminal_cuts_no_name(width):
    text = report_text(report(of("long target"), width))
    assert "…" not in text
    grid = [line[1:] for line in text.splitlines() if line.startswith("  ")]
    joined = "".join(line.split("  ")[0].strip() for line in grid)
    for end in ("one", "two"):
        assert joined.count(f"{LONG * 5}{end}") == 2
    assert max(map(len, text.splitlines())) <= width


def test_what_is_told_by_a_name_is_no_option():
    for name, options in ("engine", ()), ("seed", ()), ("decoder", ("decoder",)):
        assert Names(of(name)).options == options
    greedy = [cell(k, temperature=t) for t in (0.0, 1.0) for k in (0, 4)]
    usual = [c.but(verifier=Spec("match" if not c.temperature else "sps")) for c in greedy]
    assert Names(usual).options == ()  # the usual rule goes by the temperature
    rules = [cell(4), cell(4, verifier=Spec("match"))]
    assert [Names(rules).how(c) for c in rules] == [
        "SpS K=4, verifier sps",
        "SpS K=4, verifier match",
    ]
    tasks = [cell(4), cell(4, task=Spec("humaneval"), max_new_tokens=512, stop=("\n",))]
    assert Names(tasks).options == ()


def test_a_task_has_its_name_alone_where_that_is_enough():
    own = [cell(4, task=Spec("jsonl", (("path", path),))) for path in ("a", "b")]
    other = cell(4, task=Spec("xsum", (("data", "mini"),)))
    assert [Names([own[0], other]).work(c) for c in (own[0], other)] == ["jsonl, T 1", "xsum, T 1"]
    assert [Names(own).work(c) for c in own] == ["jsonl:path=a, T 1", "jsonl:path=b, T 1"]


def test_a_draft_model_says_only_what_the_target_has_not():
    own = [
        cell(4, target=ModelSpec("large", dtype=t), draft=ModelSpec("small", dtype=d))
        for t, d in (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
    ]
    assert [Names(own).how(c) for c in own] == [
        "SpS K=4, dtype float32",
        "SpS K=4, dtype bfloat16",
        "SpS K=4, dtype bfloat16, draft_dtype float32",
    ]


def test_labels_are_cut_only_where_they_stay_distinct():
    assert labels(["a" * 30, "b" * 30], 10)[0].startswith("aaaaaaaaaa…")
    alike = labels(["a" * 30 + "one", "a" * 30 + "two"], 10)
    assert alike[0].endswith("one")
    assert alike[1].endswith("two")
    assert len(set(labels(["a" * 30 + "b" * 30 + x for x in "xyz"] + ["other"], 10))) == 4


def test_a_target_that_drafts_for_itself_is_called_as_it_is_asked_for():
    drafts = ModelSpec("large", weights="int4")
    assert "self:int4" in method(cell(3, target=ModelSpec("large"), draft=drafts))
    assert "self" not in method(cell(3, target=drafts, draft=drafts))


def test_a_task_named_by_its_path_is_written_as_on_the_command_line():
    by_path = [cell(k, task=Spec("./my/task.py:Extract")) for k in (0, 4)]
    assert Names(by_path).work(by_path[1]) == "task.py:Extract, T 1"
    other = cell(4, task=Spec("./their/task.py:Extract"))
    assert Names([*by_path, other]).work(other) == "./their/task.py:Extract, T 1"


def engine(name, **arguments):
    return cell(4, decoder=Spec(name, tuple(arguments.items())))


def test_an_engine_elsewhere_has_a_short_name_and_its_arguments_once():
    paths = {"path": "/long/folder/one.gguf", "draft": "/long/folder/two.gguf", "threads": 2}
    there, other = engine("llamacpp", **paths), engine("openvino", path="/long/folder/ov")
    made = report([cell(4), there, other])
    names = Names([cell(4), there, other])
    assert [names.option_text(one) for one in (cell(4), there, other)] == [
        *("decoder native", "decoder llamacpp", "decoder openvino")
    ]
    lines = run_findings(made.tables[0].rows, [])
    told = "Decoder llamacpp: llamacpp:path=/long/folder/one.gguf,draft=/long/folder/two.gguf"
    assert [line.startswith(told) for line in lines if line.startswith("Decoder l")] == [True]
    assert "/long/folder" not in report_text(made)
    assert "/long/folder" in csv(made)
    cells = [engine("llamacpp", path=f"/folder/{name}.gguf") for name in ("one", "two")]
    names = Names(cells)
    assert [names.option_text(one) for one in cells] == [
        *("decoder llamacpp:path=one.gguf", "decoder llamacpp:path=two.gguf")
    ]
    alike = [engine("llamacpp", path=f"/{name}/one.gguf") for name in ("here", "there")]
    assert len({Names(alike).option_text(one) for one in alike}) == 2
