"""`sps bench` over a tiny pair: a whole run, resuming it after anything, and what is refused."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from spsbench.errors import Exit
from spsbench.reports.page.data import aggregate_tables, to_read
from spsbench.reports.run_tables import run_table
from tests.cli.forked import Forked
from tests.oracles.command import PATIENCE, environment
from tests.variants import first
from tests.waiting import wait_until

LOG = "records-00-of-01.jsonl"
COUNT = 6  # prompts
TIMINGS = {"prefill_seconds", "peak_memory_mib", "flags", "crc", "n"}


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "own, prompts.jsonl"
    rows = [
        {"id": f"p{i}", "prompt": f"the cat sat {i}", "reference": "the dog ran the cat"}
        for i in range(COUNT)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def arguments(pair, prompts):
    models = "--target", pair.target, "--draft", pair.draft
    plain = "--chat", "off"  # the tiny pair has a template
    return "bench", "jsonl", "--data", str(prompts), *models, "-n", "12", "--k", "2,3", *plain


@pytest.fixture
def whole(sps, arguments, tmp_path_factory):
    """A run that nothing has disturbed, made once for the tests that only read it."""
    folder = tmp_path_factory.getbasetemp() / "undisturbed"
    if not folder.exists():
        ran = sps(*arguments, "--out", str(folder))
        assert ran.code == 0, ran.err
        (folder.with_name("told")).write_text(ran.err + ran.out)
    return folder


def test_a_run_that_is_interrupted_while_models_load_begins_again(
    sps, arguments, tmp_path, monkeypatch
):
    out, asked = tmp_path / "run", (*arguments, "--out", str(tmp_path / "run"))
    load, calls = PreTrainedModel.from_pretrained.__func__, []

    def interrupted(cls, *args, **options):
        if not calls:  # a second one would end the program at once
            calls.append(cls)
            signal.raise_signal(signal.SIGINT)
        return load(cls, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "from_pretrained", classmethod(interrupted))
        ran = sps(*asked)
    assert (ran.code, ran.err.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    assert not out.exists()
    assert sps(*asked).code == 0
    assert (out / "manifest.json").exists()


def measured(folder):
    """The records of a run without what a clock says."""
    found = []
    for line in (folder / LOG).read_text().splitlines():
        values = json.loads(line)
        if "rounds" not in values:
            continue
        kept = {name: value for name, value in values.items() if name not in TIMINGS}
        found.append(kept | {"rounds": [counts[:4] for counts in values["rounds"]]})
    return found


def start(*arguments):
    return Forked(*arguments, env=environment())


def lines_in(path):
    return path.read_bytes().count(b'"rounds":') if path.exists() else 0


def wait_for(path, lines, process):
    assert wait_until(lambda: lines_in(path) >= lines or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def test_a_run_from_prompts_to_a_table(sps, arguments, whole, tmp_path):
    told = " ".join(whole.with_name("told").read_text().split())
    for text in ("K: 2, 3", "6 prompts, 6 references", "ArS", "T 1, SpS K=2 ", "SpS K=3", "rouge2"):
        assert text in told
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    records = measured(out)
    assert len(records) == COUNT * 3
    assert {len(record["tokens"]) for record in records} <= set(range(1, 13))
    scores = (out / "scores-00-of-01.jsonl").read_text().splitlines()
    assert len(scores) == COUNT * 3
    summary = json.loads((out / "summary.json").read_text())
    assert [row["k"] for row in summary["rows"]] == [0, 2, 3]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["cells"].keys() == {row["id"] for row in summary["rows"]}
    assert manifest["fingerprint"]["part0.samples"] == 1
    assert any(name.endswith("model.safetensors") for name in manifest["fingerprint"])
    again = sps(*arguments, "--out", str(out))
    assert again.code == Exit.MISMATCH
    assert "--resume" in again.err
    resumed = sps(*arguments, "--out", str(out), "--resume")
    assert resumed.code == 0
    assert measured(out) == records
    other = sps(*arguments, "--out", str(out), "--resume", "--temperature", "0.5")
    assert other.code == Exit.MISMATCH
    assert "part0.cells.temperature: [0.5], there [1.0]" in other.err
    moved = sps(*arguments, "--out", str(out), "--overwrite", "--limit", "1", "--k", "3,2,3")
    assert moved.code == 0
    assert len(measured(out)) == 3
    assert len(measured(tmp_path / "run.old-1")) == COUNT * 3


def test_a_run_without_texts_keeps_counts_scores_and_what_is_equal(sps, arguments, tmp_path):
    few = "--limit", "2", "--temperature", "0", "--k", "2"
    plain, bare = tmp_path / "plain", tmp_path / "bare"
    assert sps(*arguments, *few, "--out", str(plain)).code == 0
    ran = sps(*arguments, *few, "--no-texts", "--out", str(bare))
    assert ran.code == 0, ran.err
    assert "identical to those of ArS" in ran.out
    kept, left = measured(plain), measured(bare)
    gone = {"tokens", "text"}
    assert [{n: v for n, v in record.items() if n not in gone} for record in left] == [
        {n: v for n, v in record.items() if n not in gone} for record in kept
    ]
    assert all(record["tokens"] == [] for record in left)
    assert all(re.fullmatch("sha256:[0-9a-f]{32}", record["text"]) for record in left)
    scores = "scores-00-of-01.jsonl"
    assert (bare / scores).read_text() == (plain / scores).read_text()
    assert json.loads((bare / "manifest.json").read_text())["experiment"]["no_texts"] is True
    before = (bare / LOG).read_bytes()
    assert sps(*arguments, *few, "--no-texts", "--out", str(bare), "--resume").code == 0
    assert (bare / LOG).read_bytes() == before
    assert to_read(aggregate_tables([run_table(bare)]), [""]) == (
        [],
        "0 of 0 generations can be read here.",
    )


@pytest.mark.parametrize("kills", [(3,), pytest.param((5, 10), marks=pytest.mark.slow)], ids=str)
def test_killed_at_any_time_it_goes_on_as_if_nothing_had_been(
    kills, whole, sps, arguments, tmp_path
):
    out = tmp_path / "run"
    for lines in kills:
        process = start(*arguments, "--out", str(out), "--resume")
        wait_for(out / LOG, lines, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert lines <= lines_in(out / LOG) <= COUNT * 3
    assert sps(*arguments, "--out", str(out), "--resume").code == 0
    assert measured(out) == measured(whole)
    scores = [(folder / "scores-00-of-01.jsonl").read_bytes() for folder in (whole, out)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("sent", "code"), first(2, [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
)
def test_a_signal_ends_it_after_the_sample_in_hand(arguments, tmp_path, sent, code):
    out = tmp_path / "run"
    process = start(*arguments, "--out", str(out), "--samples", "50")
    wait_for(out / LOG, 2, process)
    process.send_signal(sent)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err.decode()
    last = err.decode().splitlines()[-2 if code == 130 else -1]
    assert re.match(r"stopped after \d+ of 900 generations\. Continue with: sps bench jsonl", last)
    assert last.endswith(f"--out {out} --samples 50 --resume")
    assert 2 <= lines_in(out / LOG) < 900


def test_a_dry_run_writes_nothing(sps, arguments, tmp_path):
    out = tmp_path / "run"
    ran = sps(*arguments, "--out", str(out), "--dry-run")
    assert ran.code == 0, ran.err
    assert ran.out.count("6 generations of up to 12 tokens, about 0:0") == 3
    assert "in all about 0:0" in ran.out
    assert "from 3 generations of 8 tokens" in ran.out
    assert not out.exists()


def test_shards_beyond_the_samples_are_refused(sps, arguments, tmp_path):
    shards = [(*arguments, "--limit", "1", "--shard", f"{i}/20") for i in range(20)]
    ran = [sps(*shards[i], "--out", str(tmp_path / str(i))) for i in (0, 1, 2)]
    assert Exit.USAGE in {one.code for one in ran}
    refused = [i for i, one in enumerate(ran) if one.code == Exit.USAGE]
    assert not any((tmp_path / str(i)).exists() for i in refused)


@pytest.mark.slow
def test_shards_unite_to_the_single_run(sps, arguments, whole, tmp_path):
    shards = [tmp_path / f"shard{i}" for i in range(2)]
    for i, folder in enumerate(shards):
        assert sps(*arguments, "--out", str(folder), "--shard", f"{i}/2").code == 0
    merged = tmp_path / "merged"
    ran = sps("merge", *map(str, shards), "--out", str(merged))
    assert ran.code == 0, ran.err

    def sorted_records(folder):
        return sorted(measured(folder), key=lambda r: (r["cell"], r["sample"], r["repeat"]))

    assert sorted_records(merged) == sorted_records(whole)


def test_random_weights_need_a_shape_only(sps, pair, tmp_path):
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        config = Path(getattr(pair, name)) / "config.json"
        (tmp_path / name / "config.json").write_bytes(config.read_bytes())
    out = tmp_path / "run"
    ran = sps(
        *("bench", "latency:prompt_tokens=9,count=3", "-n", "16", "--weights", "random"),
        *("--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft" / "config.json")),
        *("--out", str(out)),
    )
    assert ran.code == 0, ran.err
    assert ran.out.count("eaningless") >= 2
    records = measured(out)
    assert {(record["prompt_tokens"], len(record["tokens"])) for record in records} == {(9, 16)}
    assert any(counts[2] for record in records for counts in record["rounds"])


def test_a_file_with_flags_that_win(sps, arguments, prompts, pair, tmp_path):
    file = tmp_path / "mine.toml"
    lines = ['title = "Mine"', 'task = "jsonl"', f'data = "{prompts}"', f'target = "{pair.target}"']
    lines += [f'draft = "{pair.draft}"', "k = 5", "max_new_tokens = 6", "limit = 2"]
    lines += ['record = "laws"']
    file.write_text("\n".join(lines))
    ran = sps("bench", "--config", str(file), "--k", "1", "--out", str(tmp_path / "run"))
    assert ran.code == 0, ran.err
    assert "K: 1" in ran.err
    assert "Mine (but k=1)" in ran.out
    for record in measured(tmp_path / "run"):
        assert [len(laws[0]) for laws in record["laws"]] == [r[0] for r in record["rounds"]]


def test_a_folder_of_other_files_is_refused(sps, arguments, pair):
    assert sps(*arguments, "--out", pair.target).code == Exit.CANNOT_CREATE


@pytest.mark.parametrize(("flags", "code"), [((), Exit.OK), (("--score",), Exit.SANDBOX)])
def test_without_what_runs_programs_a_run_ends_with_a_line(
    sps, pair, tmp_path, monkeypatch, flags, code
):
    """Pass@k is n/a; the scorer's exit code comes only where it was asked for by name."""
    monkeypatch.setattr("spsbench.benchmark.conduct.is_installed", lambda path: False)
    models = "--target", pair.target, "--drafter", "ngram", "--chat", "off", "--engine", "eager"
    few = "--limit", "1", "-n", "4", "--k", "2", "--warmup", "0"
    out = tmp_path / "run"
    ran = sps("bench", "humaneval", *few, *models, "--out", str(out), *flags)
    assert ran.code == code, ran.err
    assert "its programs are not scored: nothing here runs programs" in ran.err
    assert f"sps score {out}" in ran.err
    assert "speed-up" in ran.out
    assert "pass@1" not in ran.out
    assert not (out / "verdicts.jsonl").exists()
