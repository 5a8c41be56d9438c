"""Chat templates that write the time: the prompts of a run are the same on every day."""

import json
import sys
from datetime import UTC, datetime

import pytest

from spsbench.errors import Exit
from spsbench.store.manifest import Manifest
from tests.folders import byte_tokenizer, random_model, save
from tests.variants import first

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{{ strftime_now('%d %S %f') }} {{ range(10000) | random }}"
)


def on(monkeypatch, day):
    """Let runs be created on this day of one month."""

    class Day(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 3, day, 23, 59, day, tzinfo=UTC)

    monkeypatch.setattr(sys.modules[Manifest.__module__], "datetime", Day)


@pytest.fixture
def dated(tmp_path):
    return save(tmp_path / "dated", random_model(), byte_tokenizer(TEMPLATE))


@pytest.fixture
def bench(sps, dated, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{i}", "prompt": f"the cat {i}"} for i in (3, 4, 5)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(out, *arguments):
        models = ("--target", str(dated), "--drafter", "ngram", "--k", "3", "--chat", "on")
        where = ("--data", str(prompts), "--out", str(out), "--warmup", "0", "-n", "12")
        ran = sps("bench", "jsonl", "--temperature", "0", *where, *models, *arguments)
        assert ran.code == 0, ran.err
        return out

    return run


def texts(run):
    """What each generation of a run made."""
    records = [
        json.loads(line) for path in run.glob("records-*") for line in path.read_text().splitlines()
    ]
    return {
        (r["cell"], r["sample"]): (r["prompt_tokens"], r["tokens"]) for r in records if "cell" in r
    }


def test_a_run_is_verified_and_resumed_on_another_day(sps, bench, tmp_path, monkeypatch):
    on(monkeypatch, 3)
    run = bench(tmp_path / "run")
    before = texts(run)
    arms = {cell: [before[cell, f"p{i}"] for i in (3, 4, 5)] for cell, _ in before}
    assert len(arms) == 2
    first, second = arms.values()
    assert first == second
    on(monkeypatch, 4)
    log = run / "records-00-of-01.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
    bench(run, "--resume")
    assert texts(run) == before
    ran = sps("verify", "run", str(run))
    assert ran.code == 0, ran.err
    assert "3 identical" in ran.out
    assert texts(bench(tmp_path / "another")) != before


OTHERS = first(1, [TEMPLATE.replace("%d", "%H"), "{{ messages[0].content }}!"])


@pytest.mark.parametrize("template", OTHERS)
def test_another_template_is_said_in_place_of_a_verdict(sps, bench, dated, tmp_path, template):
    run = bench(tmp_path / "run")
    byte_tokenizer(template).save_pretrained(dated)
    ran = sps("verify", "run", str(run))
    assert ran.code == Exit.MISMATCH
    assert "other prompts (jsonl" in ran.err
    assert "BUG" not in ran.err + ran.out
