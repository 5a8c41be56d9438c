import json
import shutil
import subprocess
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
from spsbench.store.log import Log
from spsbench.store.manifest import Manifest
from spsbench.store.records import records, segmented
from spsbench.store.run import merge, open_run
from spsbench.store.run_folder import belongs, records_path
from tests.store import made


def run(folder, numbers, *, manifest=None, errors=(), changed=None, **options):
    with open_run(folder, manifest or made.manifest(), **options) as writer:
        for number in numbers:
            record = made.record(number, error="x" if number in errors else None)
            record = replace(record, **(changed or {}))
            if writer.is_missing(record.key):
                writer.append(record)
    return folder


def keyed(folder):
    found = list(records(folder))
    by_key = {record.key: record for record in found}
    assert len(by_key) == len(found)
    return by_key


def test_records_know_their_segment(tmp_path):
    for end in (2, 2, 5):
        run(tmp_path, range(end), resume=True)
    assert [place.segment for place in segmented(tmp_path)] == [0, 0, 1, 1, 1]


def test_a_record_of_no_segment_is_refused(tmp_path):
    run(tmp_path, range(2))
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"segments": []}))
    with pytest.raises(DataError):
        list(segmented(tmp_path))


@pytest.mark.parametrize(
    ("numbers", "manifest", "changed", "error"),
    [
        (range(3, 5), made.manifest(), {"text": "another"}, DataError),  # of a generation again
        (range(4, 6), made.manifest(seed=1), {}, MismatchError),
    ],
)
def test_merge_refuses_other_measurements_and_other_settings(
    tmp_path, numbers, manifest, changed, error
):
    first = run(tmp_path / "a", range(4))
    second = run(tmp_path / "b", numbers, manifest=manifest, changed=changed)
    with pytest.raises(error):
        merge([first, second], tmp_path / "merged")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_merge_takes_each_run_once_and_into_a_new_folder(tmp_path):
    first = run(tmp_path / "a", range(2))
    (tmp_path / "link").symlink_to(first)
    for again in (first, tmp_path / "a" / ".." / "a", tmp_path / "link"):
        with pytest.raises(UsageError):
            merge([first, again], tmp_path / "merged")
    with pytest.raises(UsageError):
        merge([], tmp_path / "merged")
    with pytest.raises(MissingError):
        merge([first, tmp_path / "none"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(CannotCreateError):
        merge([first], first)
    assert len(keyed(first)) == 2


@pytest.mark.parametrize("text", ["same", "other"])
def test_a_generation_in_two_logs_is_one_only_if_it_is_the_same(tmp_path, text):
    run(tmp_path, [0], shard=(0, 1))
    manifest = Manifest.load(tmp_path)
    second = manifest.segments[0] | {"shard": "00-of-02"}
    structs.replace(manifest, segments=(*manifest.segments, second)).save(tmp_path)
    values = made.record(0).to_json()
    with Log(records_path(tmp_path, (0, 2))) as log:
        log.append(values | ({"text": text} if text == "other" else {}))
    if text == "other":
        with pytest.raises(DataError):
            list(records(tmp_path))
    else:
        assert list(records(tmp_path)) == [made.record(0)]


@pytest.mark.parametrize("total", [1, 2, 4])
def test_merged_shards_are_the_single_run(tmp_path, total):
    single = run(tmp_path / "single", range(12), errors=(5,))
    parts = [
        run(tmp_path / f"{n}", reversed(range(12)), errors=(5,), shard=(n, total))
        for n in range(total)
    ]
    merged = merge(list(reversed(parts)), tmp_path / "merged")
    assert keyed(tmp_path / "merged") == keyed(single)
    assert Manifest.load(tmp_path / "merged") == merged
    assert {place.segment for place in segmented(tmp_path / "merged")} == set(range(total))
    run(tmp_path / "merged", range(13), resume=True)  # it is a run like any other
    assert len(keyed(tmp_path / "merged")) == 13


def test_copies_are_tolerated(tmp_path):
    first = run(tmp_path / "a", range(4), errors=(2,))
    copy = shutil.copytree(first, tmp_path / "b")
    run(copy, range(6), errors=(), resume=True)
    merge([first, copy], tmp_path / "merged")
    assert keyed(tmp_path / "merged") == keyed(copy)
    assert (tmp_path / "merged" / "records-00-of-01.jsonl").read_bytes().count(b"\n") == 7
    assert not (tmp_path / "merged" / ".lock").exists()


def test_a_failed_merge_leaves_nothing(tmp_path):
    first = run(tmp_path / "a", range(40))
    with made.small_files(5000), pytest.raises(WriteError):
        merge([first], tmp_path / "merged")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_the_run(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(40_000))
    folder = small_disk / "run"
    with open_run(folder, made.manifest()) as writer, pytest.raises(WriteError):
        made.write(writer, 500)
    kept = len(keyed(folder))
    assert kept > 5
    with pytest.raises((CannotCreateError, WriteError)):
        run(folder, range(1), resume=True)
    assert len(keyed(folder)) == kept
    ballast.unlink()
    run(folder, range(kept + 5), resume=True)
    assert keyed(folder).keys() == {made.record(n).key for n in range(kept + 5)}


@pytest.mark.parametrize("shard", [(1, 2), (0, 1)], ids=["the same layout", "another layout"])
def test_a_shard_whose_log_is_gone_is_missed_and_made_again(tmp_path, shard):
    folder = tmp_path / "run"
    for number in range(2):
        run(folder, range(8), shard=(number, 2))
    records_path(folder, (1, 2)).unlink()
    left = {made.record(n).key for n in range(8) if belongs(made.record(n).key, (0, 2))}
    assert keyed(folder).keys() == left
    run(folder, range(8), shard=shard, resume=True)
    assert len(keyed(folder)) == 8


@pytest.mark.parametrize("merged", [False, True])
def test_records_that_a_later_start_had_seen_are_missed_and_made_again(tmp_path, merged):
    folder = tmp_path / "run"
    for end in (2, 4, 6):
        run(folder, range(end), resume=True)
    if merged:
        merge([folder], folder := tmp_path / "merged")
    path = records_path(folder, (0, 1))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert len(keyed(folder)) == 3
    run(folder, range(6), resume=True)
    assert len(keyed(folder)) == 6
    assert [place.segment for place in segmented(folder)] == [0, 0, 1, 3, 3, 3]


def test_a_round_of_a_tree_is_read_back_and_a_chain_has_no_word_of_trees(tmp_path):
    tree = TreeRound(3, (0, 2), (0, 1), (2, 2, 0))
    branched = RoundRecord(5, 2, 2, 3, None, 0.01, 0.004, 0.005, None, tree)
    rounds = [branched, made.record(0).rounds[1]]
    (back,) = records(run(tmp_path / "a", range(1), changed={"rounds": rounds}))
    assert back.rounds[0] == branched
    assert (back.rounds[0].depth, back.rounds[0].full) == (3, True)
    assert [len(row) for row in back.to_json()["rounds"]] == [10, 9]


@pytest.mark.parametrize(
    "tree",
    [
        (3, (0,), (0,), (2, 2)),  # not all that was accepted
        (3, (2, 0), (0, 1), (2, 2, 0)),  # upwards
        (3, (0, 2), (0, 2), (2, 2, 0)),  # the third child of two
        (3, (0, 9), (0, 1), (2, 2, 0)),  # a node that was not drafted
        (1, (0, 2), (0, 1), (2, 2, 0)),
        (3, 0, (0, 1), (2, 2, 0)),
        (None, (0, 2), (0, 1), (2, 2, 0)),
    ],
)
def test_a_walk_that_the_tree_does_not_have_is_told(tree):
    of = RoundRecord(5, 2, 2, 3, None, 0.01, 0.004, 0.005, None, TreeRound(*tree))
    record = replace(made.record(1), rounds=[of, made.record(1).rounds[1]])
    assert record.problem
