"""Right checksums over values that cannot be true: refused by file, line and field."""

import json
import zlib
from dataclasses import replace

import pytest

from spsbench.errors import DataError
from spsbench.settings.records import Score
from spsbench.store.log import decode
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
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
    "negative memory": {"peak_memory_mib": -1.0},
    "experts that are no list": {"experts": 2.0},
    "negative prefill": {"prefill_seconds": -1.0},
    "seconds that are no number": in_round(seconds=float("nan")),
    "seconds in words": in_round(target_seconds="1"),
    "unknown finish": {"finish": "done"},
    "more kept than drafted": in_round(accepted=5, emitted=6),
    "more kept than tested": in_round(accepted=4, emitted=3),
    "more out than kept and one": in_round(emitted=4),
    "other tokens than emitted": {"tokens": [1, 2]},
    "overlap beyond the draft": in_round(overlap=4.1),
    "half a token": in_round(drafted=4.5),
    "tested below -1": in_round(tested=-2),
    "negative tokens": {"tokens": [-1] * 8},
    "ids beyond any vocabulary": {"tokens": [2**31] * 8},
    "a prompt beyond any context": {"prompt_tokens": 2**70},
    "a text that is none": {"text": None},
    "tokens of a failure": {"error": "x", "rounds": []},
    "laws of other rounds": {"laws": [[[], [], []]]},
    "a tree that grows from below": {
        "laws": [[[1, 2], [1.0, 1.0], [0.5, 0.5], [1, 0]], [[], [], []]]
    },
    "likeliest tokens of too few": {"laws": [[[1], [1.0], [0.5], None, [[7, 0.5]]], [[], [], []]]},
    "a law beyond one": {"laws": [[[1], [1.5], [0.5]], [[], [], []]]},
}


def write(folder, change):
    """A run of two records, the second of them changed."""
    with open_run(folder, made.manifest()) as writer:
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
def test_a_record_that_cannot_be_true_is_not_read(tmp_path, name):
    folder = tmp_path / "run"
    path = write(folder, WRONG[name])
    before = path.read_bytes()
    second = decode(before.splitlines(keepends=True)[1], 1)
    assert second is not None  # its checksum is right
    for use in (
        lambda: list(records(folder)),
        lambda: merge([folder], tmp_path / "merged"),
        lambda: open_run(folder, Manifest.load(folder), resume=True),
    ):
        with pytest.raises(DataError):
            use()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [{"finish": "done"}, {"prefill_seconds": float("nan")}, {"tokens": None}, {"text": 3}],
    ids=str,
)
def test_a_record_that_cannot_be_true_is_not_written(tmp_path, change):
    with open_run(tmp_path, made.manifest()) as writer:
        with pytest.raises(DataError):
            writer.append(replace(made.record(1), **change))
        writer.append(made.record(1))
    assert list(records(tmp_path)) == [made.record(1)]


def test_all_that_runs_write_is_believed():
    good = [*golden.records(), *run(golden.cells()[1], 0.7, 5), failure(golden.cells()[0], "s")]
    good += [made.record(0), made.record(1), made.record(4, error="x")]
    good += [replace(failure(golden.cells()[0], "s"), error=None)]  # of no tokens to make
    assert [record.problem for record in good] == [""] * len(good)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"much"', "null"])
def test_a_score_that_is_no_number_is_refused(tmp_path, value):
    write_scores(tmp_path, WHOLE, [Score("c4", "task/1", 0, {"rouge2": 1.0})])
    path = scores_path(tmp_path, WHOLE)
    head = path.read_bytes().partition(b',"crc"')[0].replace(b"1.0", value.encode())
    path.write_bytes(head + f',"crc":"{zlib.crc32(head):08x}"}}\n'.encode())
    with pytest.raises(DataError):
        list(read_scores(tmp_path))
