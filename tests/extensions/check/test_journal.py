"""The kept answers of a check: whole after a kill, refused where damaged, computed anew."""

import gzip
import json
import math
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from spsbench.errors import DataError, Exit, InUseError, MismatchError, UsageError
from spsbench.extensions.check import page
from spsbench.extensions.check.check import run_check
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.options import MODES
from spsbench.serving.engines import Answer
from spsbench.serving.wire import read_json
from spsbench.store.log import Log
from tests.extensions.check.stubs import Plan, check, weights
from tests.oracles.stub import Engine, Stub, serving

READ = partial(read_json, schema=Answer)
PLAN = Plan("http://localhost:1")
ANSWER = Answer("a", ["a"], [-0.5], [[("a", -0.5), ("b", -math.inf)]], "length")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "kept.jsonl"
    journal = begun(path)
    for number in range(3):
        journal.keep(f"server/greedy/{number}", msgspec.to_builtins(ANSWER))
    journal.close()
    return path


def begun(path, plan=PLAN, **how):
    journal = Journal(path, **how)
    journal.begin(plan)
    return journal


def resumed(path, plan=PLAN):
    return begun(path, plan, resume=True)


def test_the_file_appears_with_the_first_answer(tmp_path):
    path = tmp_path / "kept.jsonl"
    journal = begun(path)
    assert list(tmp_path.iterdir()) == []
    journal.keep("server/greedy/0", msgspec.to_builtins(ANSWER))
    assert "server/greedy/0" in path.read_text()
    journal.close()
    with pytest.raises(UsageError):
        Journal(path)


def test_answers_come_back_as_they_were(path):
    journal = resumed(path)
    assert len(journal) == 3
    assert "server/greedy/2" in journal
    answer = journal.read("server/greedy/2", READ)
    assert answer.stated == [[("a", -0.5), ("b", -9999.0)]]  # as engines write it
    assert replace(answer, stated=ANSWER.stated) == ANSWER


def test_a_kill_in_a_write_loses_that_answer_alone(path):
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for place in (0, 1, 40, ends[0] - 1, ends[0], ends[2] + 30, ends[3] - 1, ends[3]):
        path.write_bytes(content[:place])
        journal = resumed(path)
        assert len(journal) == max(0, sum(end <= place for end in ends) - 2)  # header, options
        journal.keep("server/greedy/9", 1)
        journal.close()
        assert "server/greedy/9" in resumed(path)


@pytest.mark.parametrize(
    "content", [b'{"plan": [1]}\n', b"[[[[", b"a prompt without a line end", b"\xff\n"]
)
def test_another_file_is_refused_and_not_touched(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError):
        resumed(path)
    assert path.read_bytes() == content
    assert len(list(path.parent.iterdir())) == 1


HEAD = {"sps_check": 2, "plan": PLAN.header()}


@pytest.mark.parametrize(
    "lines",
    [
        *([HEAD, {"key": "a"}], [HEAD, {"key": 5, "value": 1}], [HEAD, {"value": 1}]),
        *([HEAD | {"sps_check": 1}], [HEAD | {"plan": [1]}], [{"sps_check": 2}]),
    ],
    ids=["no value", "key of a number", "no key", "other schema", "plan of a list", "no plan"],
)
def test_lines_of_another_kind_are_refused(tmp_path, lines):
    with Log(path := tmp_path / "kept.jsonl") as log:
        for line in lines:
            log.append(line)
    with pytest.raises(DataError):
        resumed(path)


@pytest.mark.parametrize("value", [{}, None, 5, {"stated": 5}, {"stated": [[1]]}, {"text": "a"}])
def test_an_answer_of_another_version_is_named(path, value):
    with Log(path) as log:
        log.append({"key": "server/greedy/3", "value": value})
    with pytest.raises(DataError):
        resumed(path).read("server/greedy/3", READ)


def test_one_check_writes_a_file(path):
    first, other = resumed(path), resumed(path)
    first.keep("a", 1)
    with pytest.raises(InUseError):
        other.keep("b", 2)
    first.close()
    one, two = (begun(path.with_name("new.jsonl")) for _ in range(2))
    one.keep("a", 1)
    with pytest.raises(InUseError):
        two.keep("b", 2)
    one.close()
    with pytest.raises(UsageError):
        two.keep("b", 2)
    two.close()
    assert len(resumed(path.with_name("new.jsonl"))) == 1


def test_other_options_are_refused_with_both_values(path):
    with pytest.raises(MismatchError):
        resumed(path, replace(PLAN, max_new_tokens=8))
    assert len(resumed(path, replace(PLAN, only=("law",), bias=0.1))) == 3


# Results without a server.

APART = ("seconds", "acceptance")  # of the run; counters of /metrics are not kept


def kept(path, scored=None, **more):
    with serving(Stub(Engine())) as url:
        chosen = {"parts": ("law", "greedy"), "bias": 0.3, **more}
        return check(url, scored, journal=Journal(path), **chosen)


def recompute(path):
    return run_check(None, {"resume": path}, load=lambda *_, **__: weights())


def same(one, two):
    figures = [page.to_plain_values(checked) for checked in (one, two)]
    return all(figures[0][name] == figures[1][name] for name in {*figures[0]} - {*APART})


@pytest.mark.parametrize(
    ("scored", "modes"),
    [
        pytest.param(None, (), id="stated"),
        pytest.param(weights(), MODES[:3], id="weights, all modes", marks=pytest.mark.slow),
    ],
)
def test_figures_of_a_whole_file_are_those_of_the_run_compressed_or_not(tmp_path, scored, modes):
    path, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    checked = kept(path, scored, parts=("law", "greedy", *modes))
    assert same(checked, recompute(path))
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert same(checked, recompute(packed))


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
    assert recompute(path).law.finding.audited.texts == 16
    path.write_bytes(b"".join(lines[: first + 5]))
    with pytest.raises(DataError):
        recompute(path)


@pytest.mark.parametrize("change", ["empty", "no gzip", "{}", "one byte", "cut", "no options"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, change):
    kept(tmp_path / "a.jsonl", parts=("greedy",))
    content = (tmp_path / "a.jsonl").read_bytes()
    path = tmp_path / "b.jsonl.gz"
    packed = {
        "empty": b"",
        "no gzip": b"no gzip",
        "{}": gzip.compress(b"{}\n"),
        "one byte": gzip.compress(content[:400] + b"x" + content[401:]),
        "cut": gzip.compress(content)[:200],
        "no options": gzip.compress(content.splitlines(keepends=True)[0]),
    }
    path.write_bytes(packed[change])
    with pytest.raises(DataError) as error:
        recompute(path)
    assert "\n" not in str(error.value)


def test_the_command_prints_the_figures_of_a_file(sps, tmp_path):
    path, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    with serving(Stub(Engine())) as url:
        options = ("check", url, "--only", "greedy", "-n", "16", "--json")
        ran = sps(*options, "--keep", str(path))
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert sps(*options, "--resume", str(packed)).code == Exit.USAGE  # nothing to add to
    again = sps("check", "--resume", str(packed), "--json")
    assert (ran.code, again.code) == (Exit.OK, Exit.OK), again.err
    one, two = json.loads(ran.out), json.loads(again.out)
    assert (one["greedy"], one["plan"]) == (two["greedy"], two["plan"])
    assert sps("check", "--resume", str(path), "--level", "0.01").code == Exit.OK
    assert sps("check", "--resume", str(path), "--seed", "1").code == MismatchError.code
    assert sps("check", "--resume", str(tmp_path / "none")).code == Exit.MISSING
