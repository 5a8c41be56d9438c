"""Reading and merging runs; right checksums over values that cannot be true are refused."""

import json
import shutil
import zlib
from dataclasses import replace

import pytest
from msgspec import structs

from spsbench.errors import (
    CannotCreateError,
    DataError,
    MismatchError,
    MissingError,
    UsageError,
    WriteError,
)
from spsbench.settings.records import RoundRecord, TreeRound
from spsbench.store.log import Log, decode_record
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records, records
from spsbench.store.run import merge_runs, open_run
from spsbench.store.run_folder import WHOLE, belongs, records_path
from spsbench.store.starts import Memory, Provenance
from tests.store import made


def keyed(folder):
    by_key = {record.key: record for record in records(folder)}
    assert len(by_key) == len(list(records(folder)))
    return by_key


def test_merge_takes_each_run_once_and_into_a_new_folder(tmp_path):
    first = made.run(tmp_path / "a", range(40))
    again = made.run(tmp_path / "b", range(3, 5), changed={"text": "another"})
    other = made.run(tmp_path / "c", range(40, 42), made.manifest(seed=1))
    for second, error in ((again, DataError), (other, MismatchError)):
        with pytest.raises(error):
            merge_runs([first, second], tmp_path / "merged")
    (tmp_path / "link").symlink_to(first)
    for again in (first, first / ".." / "a", tmp_path / "link"):
        with pytest.raises(UsageError):
            merge_runs([first, again], tmp_path / "merged")
    with pytest.raises(UsageError):
        merge_runs([], tmp_path / "merged")
    with pytest.raises(MissingError):
        merge_runs([first, tmp_path / "none"], tmp_path / "merged")
    with pytest.raises(CannotCreateError):
        merge_runs([first], first)
    with made.small_files(5000), pytest.raises(WriteError):
        merge_runs([first], tmp_path / "merged")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c", "link"]


def test_a_generation_in_two_logs_is_one_only_if_it_is_the_same(tmp_path):
    made.run(tmp_path, [0], shard=(0, 1))
    with Log(records_path(tmp_path, (0, 2))) as log:
        log.append(made.record(0).to_json())
        assert list(records(tmp_path)) == [made.record(0)]
        log.append(made.record(0).to_json() | {"text": "other"})
    with pytest.raises(DataError):
        list(records(tmp_path))


@pytest.mark.parametrize("total", [1, 2, 4])
def test_merged_shards_are_the_single_run(tmp_path, total):
    single = made.run(tmp_path / "single", range(12), errors=(5,))
    parts = [
        made.run(tmp_path / f"{n}", range(11, -1, -1), errors=(5,), shard=(n, total), threads=n + 1)
        for n in range(total)
    ]
    merged = merge_runs(list(reversed(parts)), folder := tmp_path / "merged")
    assert keyed(folder) == keyed(single)
    assert Manifest.load(folder) == merged
    for record, start in ((record, start) for start, record in placed_records(folder)):
        assert belongs(record.key, (start.provenance.threads - 1, total))
    made.run(folder, range(13), resume=True)  # it is a run like any other
    assert len(keyed(folder)) == 13


def test_copies_are_tolerated_and_starts_without_records_of_their_own_left_out(tmp_path):
    first = made.run(tmp_path / "a", range(4), errors=(2,))
    copy = shutil.copytree(first, tmp_path / "b")
    made.run(copy, range(6), resume=True, threads=2)
    merge_runs([first, copy], tmp_path / "merged")
    assert keyed(tmp_path / "merged") == keyed(copy)
    starts = [start.provenance.threads for start, _ in placed_records(tmp_path / "merged")]
    assert starts == [1, 1, 1, 2, 2, 2]
    assert records_path(tmp_path / "merged", WHOLE).read_bytes().count(b"\n") == 7 + 2


def test_merge_keeps_workers_notes_and_the_time_that_prompts_tell(tmp_path):
    at, folders = {}, []
    for number, ids in enumerate(("x", "x", "y")):
        at[number] = made.manifest().created.replace(year=2020 + number)
        manifest = structs.replace(
            made.manifest(), created=at[number], experiment={"prompt_ids": {"c4": ids}}
        )
        folders.append(tmp_path / str(number))
        with open_run(folders[-1], manifest) as writer:
            writer.start(Provenance(threads=number + 1))
            writer.start(Provenance(threads=number + 9), "worker")
            writer.append(made.record(2 * number))
            writer.note(memory=Memory(2e9), counters={"c4": {"texts": 1}})
            writer.append(made.record(2 * number + 1), "worker")
            writer.note(counters={"c4": {"texts": number}})
    for _ in range(2):
        merge_runs(folders, folder := tmp_path / f"merged {len(folders)}")
        placed = list(placed_records(folder))
        assert [start.provenance.threads for start, _ in placed] == [1, 9, 2, 10, 3, 11]
        assert [start.clock for start, _ in placed] == [None] * 4 + [at[2]] * 2
        assert [start.counters for start, _ in placed][::2] == [
            {"c4": {"texts": n}} for n in (1, 2, 3)
        ]
        assert all(start.provenance.memory == Memory(2e9) for start, _ in placed[::2])
        folders = [folder, *folders]


@pytest.mark.parametrize("lines", [None, 1, 3])
@pytest.mark.parametrize("shard", [(1, 2), (0, 1)], ids=["the same layout", "another layout"])
def test_what_a_log_has_lost_is_missed_and_made_again(tmp_path, shard, lines):
    folder = tmp_path / "run"
    for number in range(2):
        made.run(folder, range(8), shard=(number, 2))
    log = records_path(folder, (1, 2))
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:lines]))
    if lines is None:
        log.unlink()
    left = {made.record(n).key for n in range(8) if belongs(made.record(n).key, (0, 2))}
    assert len(keyed(folder)) == len(left) + max((lines or 1) - 1, 0)  # the first is of the start
    made.run(folder, range(8), shard=shard, resume=True)
    assert len(keyed(folder)) == 8


def test_a_round_of_a_tree_is_read_back_and_a_chain_has_no_word_of_trees(tmp_path):
    tree = TreeRound(3, (0, 2), (0, 1), (2, 2, 0))
    branched = RoundRecord(5, 2, 2, 3, None, 0.01, 0.004, 0.005, None, tree)
    rounds = [branched, made.record(0).rounds[1]]
    (back,) = records(made.run(tmp_path / "a", range(1), changed={"rounds": rounds}))
    assert back.rounds[0] == branched
    assert (back.rounds[0].depth, back.rounds[0].full) == (3, True)
    assert [len(row) for row in back.to_json()["rounds"]] == [10, 9]


def in_round(**changes):
    """The made-up record with its first round changed."""
    first, *rest = made.record(1).rounds
    return {"rounds": [list(first._replace(**changes)), *map(list, rest)]}


def in_tree(*tree):
    return in_round(drafted=5, tested=2, overlap=None, processor_seconds=None, tree=tree)


WRONG = {
    "by hand": {"by": "hand"},
    "of no start": {"machine": "unknown"},
    "a start without a time": {"start": {"started": "today"}},
    "a negative memory bandwidth": {"note": {"memory": {"bandwidth": -1.0}}},
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
    "a path of fewer than accepted": in_tree(3, [0], [0], [2, 2]),
    "a path upwards": in_tree(3, [2, 0], [0, 1], [2, 2, 0]),
    "the third child of two": in_tree(3, [0, 2], [0, 2], [2, 2, 0]),
    "a node that was not drafted": in_tree(3, [0, 9], [0, 1], [2, 2, 0]),
    "a path deeper than the tree": in_tree(1, [0, 2], [0, 1], [2, 2, 0]),
    "a path that is no list": in_tree(3, 0, [0, 1], [2, 2, 0]),
    "a tree without a depth": in_tree(None, [0, 2], [0, 1], [2, 2, 0]),
}


def signed(values):
    """As `encode` writes it, but with numbers that are none."""
    head = json.dumps(values, separators=(",", ":"))[:-1].encode()
    return head + f',"crc":"{zlib.crc32(head):08x}"}}\n'.encode()


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_cannot_be_true_is_not_read(tmp_path, name):
    path = records_path(made.run(folder := tmp_path / "run", [0]), WHOLE)
    before = path.read_bytes() + signed({"n": 2} | made.record(1).to_json() | WRONG[name])
    path.write_bytes(before)
    assert (
        decode_record(before.splitlines(keepends=True)[2], 2) is not None
    )  # its checksum is right
    for use in (
        lambda: list(records(folder)),
        lambda: merge_runs([folder], tmp_path / "merged"),
        lambda: open_run(folder, Manifest.load(folder), resume=True),
    ):
        with pytest.raises(DataError):
            use()
    assert path.read_bytes() == before


def test_a_record_that_cannot_be_true_is_not_written(tmp_path):
    with open_run(tmp_path, made.manifest()) as writer:
        for change in ({"finish": "done"}, {"prefill_seconds": float("nan")}, {"tokens": None}):
            with pytest.raises(DataError):
                writer.append(replace(made.record(1), **change))
        writer.append(made.record(1))
    assert list(records(tmp_path)) == [made.record(1)]
