"""Right checksums over values that cannot be true: refused by file, line and field."""

import json
import zlib
from dataclasses import replace

import pytest

from spsbench.errors import DataError
from spsbench.settings.records import Record, Score
from spsbench.store.log import decode
from spsbench.store.manifest import Manifest
from spsbench.store.records import impossible, records
from spsbench.store.run import merge, open_run
from spsbench.store.run_folder import WHOLE, records_path
from spsbench.tasks.scores import read_scores, scores_path, write_scores
from tests.golden import make as golden
from tests.simulation import failure, run
from tests.store import made


def in_round(**changes):
    """The made-up record with its first round changed."""
    first, *rest = made.record(1).rounds
    return {"rounds": [list(first._replace(**changes)), *map(list, rest)]}


WRONG = {
    "negative memory": ({"peak_memory_mib": -1.0}, "peak_memory_mib: -1.0"),
    "experts that are no list": ({"experts": 2.0}, "experts: 2.0"),
    "negative prefill": ({"prefill_seconds": -1.0}, "prefill_seconds: -1.0"),
    "seconds that are no number": (in_round(seconds=float("nan")), "rounds: seconds nan"),
    "seconds in words": (in_round(target_seconds="1"), "rounds: target_seconds '1'"),
    "unknown finish": ({"finish": "done"}, "finish: 'done', expected one of eos, stop, length"),
    "more kept than drafted": (in_round(accepted=5, emitted=6), "4 drafted, 3 tested, 5 accepted"),
    "more kept than tested": (in_round(accepted=4, emitted=3), "4 drafted, 3 tested, 4 accepted"),
    "more out than kept and one": (
        in_round(emitted=4),
        "2 accepted, 4 emitted, expected at most one",
    ),
    "other tokens than emitted": ({"tokens": [1, 2]}, "rounds: 8 emitted, expected as many as"),
    "overlap beyond the draft": (in_round(overlap=4.1), "overlap 4.1 of 4 drafted"),
    "half a token": (in_round(drafted=4.5), "rounds: drafted 4.5, expected a number from -1"),
    "tested below -1": (in_round(tested=-2), "rounds: tested -2, expected a number from -1"),
    "negative tokens": ({"tokens": [-1] * 8}, "tokens: "),
    "ids beyond any vocabulary": ({"tokens": [2**31] * 8}, "tokens: "),
    "a prompt beyond any context": ({"prompt_tokens": 2**70}, "prompt_tokens: 11805"),
    "a text that is none": ({"text": None}, "text: None"),
    "tokens of a failure": ({"error": "x", "rounds": []}, "tokens: .*none, since it failed"),
    "laws of other rounds": ({"laws": [[[], [], []]]}, "laws: 1, expected one a round, 2"),
    "a tree that grows from below": (
        {"laws": [[[1, 2], [1.0, 1.0], [0.5, 0.5], [1, 0]], [[], [], []]]},
        "laws: round 0",
    ),
    "likeliest tokens of too few": (
        {"laws": [[[1], [1.0], [0.5], None, [[7, 0.5]]], [[], [], []]]},
        "laws: round 0",
    ),
    "a law beyond one": ({"laws": [[[1], [1.5], [0.5]], [[], [], []]]}, "laws: round 0"),
    "a sample that is not there": ({"sample": "task/9"}, "sample: 'task/9', expected one of the 3"),
}


def write(folder, change):
    """A run of two records, the second of them changed; its ids are noted."""
    ids = {"samples": {"humaneval": [f"task/{n}" for n in range(3)]}}
    manifest = replace(made.manifest(), experiment={"task": "humaneval"} | ids)
    with open_run(folder, manifest) as writer:
        writer.append(made.record(0))
        writer.append(made.record(1))
    path = records_path(folder, WHOLE)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line(json.loads(second), change))
    return path


def line(values, change):
    """As `encode` writes it, but with numbers that are none."""
    kept = {name: value for name, value in (values | change).items() if name != "crc"}
    head = json.dumps(kept, separators=(",", ":"))[:-1].encode()
    return head + f',"crc":"{zlib.crc32(head):08x}"}}\n'.encode()


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_cannot_be_true_is_refused(tmp_path, name):
    change, words = WRONG[name]
    path = write(tmp_path / "run", change)
    before = path.read_bytes()
    assert decode(before.splitlines(keepends=True)[1], 1) is not None  # its checksum is right
    where = rf"impossible record \({path}, line 2, .*{words}"
    with pytest.raises(DataError, match=where):
        list(records(tmp_path / "run"))
    with pytest.raises(DataError, match=where):
        merge([tmp_path / "run"], tmp_path / "merged")
    with pytest.raises(DataError, match=where):
        open_run(tmp_path / "run", Manifest.load(tmp_path / "run"), resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_could_not_be_read_is_not_written(tmp_path, name):
    """What a reader would refuse is refused before the write, so the run stays readable."""
    change, _ = WRONG[name]
    ids = {"samples": {"humaneval": [f"task/{n}" for n in range(3)]}}
    manifest = replace(made.manifest(), experiment={"task": "humaneval"} | ids)
    with open_run(tmp_path, manifest) as writer:
        writer.append(made.record(0))
        with pytest.raises(DataError, match="It was not written"):
            writer.append(Record.from_json(made.record(1).to_json() | change))
        writer.append(made.record(1))
    assert list(records(tmp_path)) == [made.record(0), made.record(1)]


def test_an_unchanged_record_is_believed(tmp_path):
    write(tmp_path / "run", {})
    assert list(records(tmp_path / "run")) == [made.record(0), made.record(1)]


def test_all_that_runs_write_is_believed():
    good = [*golden.records(), *run(golden.cells()[1], 0.7, 5), failure(golden.cells()[0], "s")]
    good += [made.record(3), made.record(4, error="x")]
    good += [replace(failure(golden.cells()[0], "s"), error=None)]  # of no tokens to make
    assert [impossible(record) for record in good] == [None] * len(good)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"much"', "null"])
def test_a_score_that_is_no_number_is_refused(tmp_path, value):
    write_scores(tmp_path, WHOLE, [Score("c4", "task/1", 0, {"rouge2": 1.0})])
    path = scores_path(tmp_path, WHOLE)
    head = path.read_bytes().partition(b',"crc"')[0].replace(b"1.0", value.encode())
    path.write_bytes(head + f',"crc":"{zlib.crc32(head):08x}"}}\n'.encode())
    with pytest.raises(DataError, match=rf"{path.name}, line 1: rouge2"):
        list(read_scores(tmp_path))
