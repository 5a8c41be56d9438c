"""`sps report FILE`: what other benchmarks saved, in this project's terms.

The files have the fields of vllm/benchmarks/serve.py, of AIPerf's docs/reference/json-export-schema
(schema 1.5), of GuideLLM's src/guidellm/benchmark/schemas (version 1) and of SpecForge's
specforge/benchmarks/report.py.
"""

import json
from pathlib import Path

import pytest

from spsbench.errors import DataError, MissingError
from spsbench.reports.other_benchmarks import figure_tables, read_results
from tests.oracles import hostile

FILES = Path(__file__).parent / "results_of_others"


def values(found):
    return {figure["name"]: figure["value"] for figure in found.figures}


SUMS = {"completed": 20, "total_output_tokens": 900, "request_throughput": 2.0}
SPECULATED = {
    "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 30,
    "spec_decode_accepted_tokens": 12,
}
STATISTICS = {"successful": {"mean": 9.0}}
SGLANG = {"total_output_tokens_retokenized": 899, "accept_length": 2.7}
GUIDELLM = {"benchmarks": [{"metrics": {"time_to_first_token_ms": STATISTICS}}]}


@pytest.mark.parametrize(
    ("value", "tool", "figure", "number"),
    [
        (SUMS | SPECULATED, "vllm bench serve", "tokens a pass, accepted + 1", 2.2),
        (SUMS | SGLANG, "SGLang bench_serving", "tokens / rounds, with the prefill's token", 2.7),
        (GUIDELLM, "GuideLLM", "TTFT, mean", 9.0),
    ],
)
def test_files_of_other_versions_and_percentiles_are_read(tmp_path, value, tool, figure, number):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(value))
    (found,) = read_results(path)
    assert found.tool == tool
    assert values(found)[figure] == pytest.approx(number)


NOTHING = {"completed": 0, "failed": 8, "request_throughput": 0.0, "output_throughput": 0.0}


@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        (NOTHING | {"mean_ttft_ms": 0.0}, {"TTFT, mean", "tokens a second of the machine"}),
        (SUMS | {"mean_ttft_ms": 9.0, "median_ttft_ms": 0.0}, {"TTFT, mean", "TTFT, median"}),
        (
            SUMS | {"mean_tpot_ms": 0.0, "mean_ttft_ms": 9.0},
            {"time per token after the first, mean"},
        ),
        (SUMS | {"mean_ttft_ms": 9.0, "median_ttft_ms": 8.0}, set()),
    ],
)
def test_zeros_that_stand_for_no_measurement_are_no_figures(tmp_path, value, left_out):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(value))
    (found,) = read_results(path)
    assert {name for name, number in values(found).items() if number is None} == left_out
    assert all(figure.get("reason") for figure in found.figures if figure["value"] is None)
    shown = [row for table in figure_tables([found]) for row in table.rows]
    assert {name for name, text, _ in shown if text.startswith("n/a: ")} == left_out
    assert any("8 of 8" in note for note in found.not_comparable) == (value["completed"] == 0)


def test_sglang_divides_events_by_their_tokens(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(SUMS | SGLANG | {"mean_itl_ms": 3.2}))
    (found,) = read_results(path)
    (name,) = [figure["name"] for figure in found.figures if figure["field"] == "mean_itl_ms"]
    assert "loop" not in name


@pytest.mark.parametrize(
    "text",
    [
        *("not json", '{"a": 1}', "[1]", "\udc80", '{"benchmarks": [{"metrics": {}}]}'),
        '{"model": "m", "draft_model": null, "runs": [{"task": {}}]}',
        '{"model": "m", "draft_model": null, "runs": []}',
    ],
)
def test_other_files_are_refused_in_one_line(text, tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as caught:
        read_results(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(MissingError):
        read_results(tmp_path / "nowhere.json")


def refusal(path):
    """The line with which a file is refused; empty where it is shown in short tables."""
    try:
        shown = list(figure_tables(read_results(path)))
    except DataError as error:
        return str(error)
    assert all(len(table.rows) < 5000 and len(table.title) < 500 for table in shown)
    return ""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 61])
def test_every_file_ends_in_tables_or_in_one_line(tmp_path, every):
    path = tmp_path / "results.json"
    contents = [
        content
        for file in sorted(FILES.iterdir())
        for _, content in hostile.changes(json.loads(file.read_text().split("\n{")[0]))
    ]
    for content in contents[::every] + list(hostile.BODIES.values()):
        path.write_bytes(content)
        line = refusal(path)
        assert "\n" not in line
        assert len(line) < 1000
