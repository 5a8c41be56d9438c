"""`sps report FILE`: what other benchmarks saved, in this project's terms.

The files have the fields of vllm/benchmarks/serve.py, of AIPerf's docs/reference/json-export-schema
(schema 1.5), of GuideLLM's src/guidellm/benchmark/schemas (version 1) and of SpecForge's
specforge/benchmarks/report.py and benchmarks/bench_eagle3.py.
"""

import json
from pathlib import Path

import pytest

from spsbench.errors import DataError, MissingError
from spsbench.reports.others.files import read_results, tables
from tests.serving import hostile

FILES = Path(__file__).parent / "results_of_others"


def values(found):
    return {figure.name: figure.value for figure in found.figures}


def test_vllms_counts_give_both_kinds_of_rates_by_position():
    (found,) = read_results(FILES / "vllm.json")
    shown = values(found)
    assert shown["tokens a pass, accepted + 1"] == pytest.approx(1 + 12561 / 7900)
    assert shown["draft acceptance, accepted / drafted"] == pytest.approx(0.53)
    assert shown["position 2 accepted, of all rounds"] == pytest.approx(0.52)
    assert shown["position 2 accepted, where those before were"] == pytest.approx(0.52 / 0.73)
    assert not any(name.startswith("block efficiency") for name in shown)
    assert {line.split(":")[0] for line in found.apart} >= {"losslessness", "alpha", "the speed-up"}
    assert any("loop time" in line for line in found.apart)  # its ITL


def test_aiperfs_histogram_is_pooled_over_rounds():
    (found,) = read_results(FILES / "aiperf.json")
    shown = values(found)
    assert shown["tokens a pass, accepted + 1"] == pytest.approx(1 + 36 / 16)
    assert shown["position 3 accepted, of all rounds"] == pytest.approx(8 / 16)
    assert shown["time per output token after the first, mean"] == 9.5
    assert found.title.endswith("AIPerf 0.13.0")


def test_guidellms_benchmarks_have_a_measurement_each():
    first, second = read_results(FILES / "guidellm.json")
    assert first.title == "m, GuideLLM 0.5.0, concurrent, streams 8"
    shown = values(first)
    assert (shown["requests that succeeded"], shown["requests that failed"]) == (40, 2)
    assert shown["time per output token after the first, mean"] == 9.25  # not its TPOT
    assert shown["tokens an event after the first, mean"] == 2.6
    assert shown["TTFT, median"] == 38.5
    assert any("several rounds" in line for line in first.apart)
    assert second.title == "m, GuideLLM 0.5.0, synchronous"
    assert len(second.figures) == 4


def test_specforges_length_loses_the_prefills_token_where_rounds_are_known():
    first, plain = read_results(FILES / "specforge.json")
    assert values(first)["block efficiency tau, emitted / rounds"] == (32160 - 160) / 12000
    assert values(first)["tokens / rounds, with the prefill's token"] == 2.68
    assert "block efficiency tau, emitted / rounds" not in values(plain)
    base, drafted = read_results(FILES / "bench_eagle3.jsonl")
    assert "no speculation" in base.title
    assert len(values(base)) == 2  # a length of 1.0 stands for nothing known
    assert values(drafted)["tokens / rounds, with the prefill's token"] == 2.6


SUMS = {"completed": 20, "total_output_tokens": 900, "request_throughput": 2.0}
SPECULATED = {
    "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 30,
    "spec_decode_accepted_tokens": 12,
}
STATISTICS = {"successful": {"mean": 9.0}}


@pytest.mark.parametrize(
    ("value", "tool", "figure", "number"),
    [
        (SUMS | SPECULATED, "vllm bench serve", "tokens a pass, accepted + 1", 2.2),
        (SUMS | {"mean_tpot_ms": 9.0}, "vllm bench serve", "requests that succeeded", 20),
        (SUMS | {"mean_e2el_ms": 90.0}, "vllm bench serve", "time of an answer, mean", 90.0),
        (
            SUMS | {"total_output_tokens_retokenized": 899, "accept_length": 2.7},
            "SGLang bench_serving",
            "tokens / rounds, with the prefill's token",
            2.7,
        ),
        (
            {"benchmarks": [{"metrics": {"time_to_first_token_ms": STATISTICS}}]},
            "GuideLLM",
            "TTFT, mean",
            9.0,
        ),
    ],
)
def test_files_of_other_versions_and_percentiles_are_read(tmp_path, value, tool, figure, number):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(value))
    (found,) = read_results(path)
    assert found.tool == tool
    assert values(found)[figure] == pytest.approx(number)


def test_a_file_without_speculation_says_so(tmp_path):
    value = json.loads((FILES / "vllm.json").read_text())
    plain = {name: each for name, each in value.items() if not name.startswith("spec_decode")}
    path = tmp_path / "plain.jsonl"
    path.write_text(f"{json.dumps(plain)}\n{json.dumps(value)}\n")  # of --append-result
    without, speculated = read_results(path)
    assert any(line.startswith("acceptance: ") for line in without.apart)
    assert len(speculated.figures) > len(without.figures)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "no JSON"),
        ('{"a": 1}', "no known tool"),
        ("[1]", "no object"),
        ('{"model": "m", "draft_model": null, "runs": [{"task": {}}]}', "another version"),
        ('{"model": "m", "draft_model": null, "runs": []}', "no measurements"),
        ("\udc80", "UTF-8"),
    ],
)
def test_other_files_are_refused_in_one_line(text, said, tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=said) as caught:
        read_results(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(MissingError):
        read_results(tmp_path / "nowhere.json")


def changed(name, **fields):
    """A file with some fields of its first measurement changed."""
    value = json.loads((FILES / name).read_text().split("\n{")[0])
    place = value["runs"][0]["metrics"] if name == "specforge.json" else value
    place |= fields
    return value


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("aiperf.json", {"pooled_spec_decode_acceptance_histogram": {"999999999": 1}}),
        ("aiperf.json", {"pooled_spec_decode_acceptance_histogram": [1] * 60_000}),
        ("vllm.json", {"spec_decode_per_position_acceptance_rates": [0.5] * 100_000}),
        ("vllm.json", {"spec_decode_accepted_tokens": int("9" * 400)}),
    ],
)
def test_numbers_that_no_run_has_are_refused(tmp_path, name, fields):
    path = tmp_path / name
    path.write_text(json.dumps(changed(name, **fields)))
    with pytest.raises(DataError, match="results of another version"):
        read_results(path)


@pytest.mark.parametrize("value", [None, "many", int("9" * 400), [1], float("nan")])
@pytest.mark.parametrize("field", ["num_requests", "output_tokens", "spec_verify_count"])
def test_counts_that_a_report_lacks_are_left_out(tmp_path, field, value):
    path = tmp_path / "specforge.json"
    path.write_text(json.dumps(changed("specforge.json", **{field: value})))
    first, _ = read_results(path)
    assert "block efficiency tau, emitted / rounds" not in values(first)
    assert "tokens a second of the machine" in values(first)


def test_names_of_any_length_are_cut(tmp_path):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(changed("vllm.json", model_id="m" * 10**6)))
    (found,) = read_results(path)
    assert len(found.title) < 500
    path.write_text(json.dumps({"k" * 10**6: 1}))
    with pytest.raises(DataError, match="no known tool") as caught:
        read_results(path)
    assert len(str(caught.value)) < 1000


def test_a_file_without_figures_is_refused(tmp_path):
    path = tmp_path / "guidellm.json"
    path.write_text(json.dumps({"metadata": {}, "benchmarks": [{"metrics": {}}]}))
    with pytest.raises(DataError, match="no measurements"):
        read_results(path)


def refusal(path):
    """The line with which a file is refused; empty where it is shown in short tables."""
    try:
        shown = list(tables(read_results(path)))
    except DataError as error:
        return str(error)
    assert all(len(rows) < 5000 for _, _, rows, _ in shown)
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
