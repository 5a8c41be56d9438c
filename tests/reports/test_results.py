"""`sps report FILE`: what other benchmarks saved, in this project's terms.

The files have the fields of vllm/benchmarks/serve.py, of AIPerf's docs/reference/json-export-schema
(schema 1.5), of GuideLLM's src/guidellm/benchmark/schemas (version 1) and of SpecForge's
specforge/benchmarks/report.py.
"""

import json
from pathlib import Path

import pytest

from spsbench.errors import DataError, MissingError
from spsbench.reports.other_benchmarks import read_results, tables
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
        shown = list(tables(read_results(path)))
    except DataError as error:
        return str(error)
    assert all(len(rows) < 5000 and len(title) < 500 for title, _, rows, _ in shown)
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
