"""`sps report FILE`: what other benchmarks saved, in this project's terms.

The files have the fields of vllm/benchmarks/serve.py, of AIPerf's docs/reference/json-export-schema
(schema 1.5) and of SpecForge's specforge/benchmarks/report.py and benchmarks/bench_eagle3.py.
"""

import json
from pathlib import Path

import pytest

from spsbench.errors import DataError, MissingError
from spsbench.servers.results import read_results

FILES = Path(__file__).parent / "results"


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


def test_specforges_length_loses_the_prefills_token_where_rounds_are_known():
    first, plain = read_results(FILES / "specforge.json")
    assert values(first)["block efficiency tau, emitted / rounds"] == (32160 - 160) / 12000
    assert values(first)["tokens / rounds, with the prefill's token"] == 2.68
    assert "block efficiency tau, emitted / rounds" not in values(plain)
    base, drafted = read_results(FILES / "bench_eagle3.jsonl")
    assert "no speculation" in base.title
    assert len(values(base)) == 2  # a length of 1.0 stands for nothing known
    assert values(drafted)["tokens / rounds, with the prefill's token"] == 2.6


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
