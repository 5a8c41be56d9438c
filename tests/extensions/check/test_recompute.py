"""The results of kept answers, computed anew without a server, compressed or not."""

import gzip
import json

import pytest

from spsbench.errors import DataError, Exit
from spsbench.extensions.check import page
from spsbench.extensions.check.check import examine, run_check
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.options import MODES
from spsbench.serving.http import Limits
from tests.extensions.check.stubs import Plan, weights
from tests.oracles.stub import Engine, Stub, serving

FAST = Limits(timeout=60, retries=1, pause=0.01)
APART = ("seconds", "acceptance")  # of the run; counters of /metrics are not kept


def kept(path, stub=None, scored=None, baseline=None, **more):
    chosen = {"parts": ("law", "greedy"), "bias": 0.3, "length": 16, "limits": FAST, **more}
    with serving(stub or Stub(Engine())) as url:
        plan = Plan(url, baseline=baseline, weights=scored and scored.name, **chosen)
        return examine(plan, scored, Journal(path))


def recompute(path, **load):
    return run_check(None, {"resume": path}, **load)


def same(one, two):
    figures = [page.as_json(checked) for checked in (one, two)]
    for values in figures:
        for name in APART:
            del values[name]
    return figures[0] == figures[1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("scored", [None, weights()])
def test_figures_are_those_of_the_run(tmp_path, name, scored):
    path = tmp_path / name
    checked = kept(path, scored=scored, parts=("law", "greedy", *MODES))
    anew = recompute(path, load=lambda *_, **__: weights())
    assert same(checked, anew)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_baseline_is_not_asked_either(tmp_path):
    with serving(Stub(Engine(k=0))) as base:
        checked = kept(tmp_path / "a.jsonl", baseline=base)
    assert same(checked, recompute(tmp_path / "a.jsonl"))


def test_answers_that_end_before_the_claim_say_what_they_tell(tmp_path):
    """An interrupted check: whole batches are judged, half a batch is left out."""
    path = tmp_path / "a.jsonl"
    kept(path, parts=("law",))
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if b"server/sampled/" in line)
    path.write_bytes(b"".join(lines[: first + 20]))
    assert recompute(path).law.audited.texts == 16
    path.write_bytes(b"".join(lines[: first + 5]))
    with pytest.raises(DataError):
        recompute(path)


def test_what_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    kept(path, parts=("greedy",))
    content = gzip.decompress(path.read_bytes())
    for wrong in (
        b"",
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"{}\n"),
        gzip.compress(content[:400] + b"x" + content[401:]),
        path.read_bytes()[:200],
    ):
        (tmp_path / "b.jsonl.gz").write_bytes(wrong)
        with pytest.raises(DataError) as error:
            recompute(tmp_path / "b.jsonl.gz")
        assert "\n" not in str(error.value)


def test_the_command_prints_the_figures_of_a_file(sps, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with serving(Stub(Engine())) as url:
        options = ("--only", "greedy", "-n", "16", "--keep", str(path), "--json")
        ran = sps("check", url, *options)
    again = sps("check", "--resume", str(path), "--json")
    assert (ran.code, again.code) == (Exit.OK, Exit.OK), again.err
    one, two = json.loads(ran.out), json.loads(again.out)
    assert one["greedy"] == two["greedy"]
    assert one["plan"] == two["plan"]
    assert sps("check", "--resume", str(path), "--level", "0.01").code == Exit.OK
    assert sps("check", "--resume", str(path), "--seed", "1").code == Exit.USAGE
    assert sps("check", "--resume", str(tmp_path / "none")).code == Exit.MISSING


def test_a_compressed_file_is_gone_on_with(sps, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    stub = Stub(Engine())
    with serving(stub) as url:
        options = ("-n", "16", "--only", "greedy")
        assert sps("check", url, *options, "--keep", str(path)).code == Exit.OK
        asked = len(stub.asked)
        assert sps("check", url, *options, "--keep", str(path)).code == Exit.USAGE
        ran = sps("check", url, *options, "--only", "cache", "--resume", str(path))
        assert ran.code == Exit.OK, ran.err
        texts = [body for body in stub.asked[asked:] if body["max_tokens"] == 16]
    assert len(texts) == 8  # four long prompts, twice: the greedy ones are kept
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_check_goes_on_by_the_compressed_name_that_it_was_given(sps, tmp_path):
    path, plain = tmp_path / "a.jsonl.gz", tmp_path / "a.jsonl"
    options = ("-n", "16", "--only", "greedy")
    with serving(Stub(Engine())) as url:
        assert sps("check", url, *options, "--keep", str(path)).code == Exit.OK
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        path.unlink()
        plain.write_bytes(b"".join(lines[:6]))  # what a killed check leaves
        ran = sps("check", url, *options, "--resume", str(path))
    assert ran.code == Exit.OK, ran.err
    assert list(tmp_path.iterdir()) == [path]
