from dataclasses import replace
from pathlib import Path

import pytest

from spsbench.errors import (
    CannotCreateError,
    DataError,
    InUseError,
    MismatchError,
    UsageError,
)
from spsbench.store.lock import Lock
from spsbench.store.log import Log, iterate
from spsbench.store.manifest import Manifest
from spsbench.store.provenance import bandwidth_before
from spsbench.store.records import records, segmented
from spsbench.store.run import ATTEMPTS, open_run
from spsbench.store.run_folder import belongs, record_logs, records_path
from tests.store import made


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def begin(folder, count=3, manifest=None, **options):
    with open_run(folder, manifest or made.manifest(), **options) as writer:
        made.write(writer, count)
    return writer


def test_a_run_is_written_and_read(folder):
    begin(folder)
    assert list(records(folder)) == [made.record(n) for n in range(3)]
    manifest = Manifest.load(folder)
    assert manifest.fingerprint == made.FINGERPRINT
    assert [(s["shard"], s["first"]) for s in manifest.segments] == [("00-of-01", 0)]
    assert sorted(p.name for p in folder.iterdir()) == [
        ".lock",
        "manifest.json",
        "records-00-of-01.jsonl",
    ]


def test_a_run_goes_on_where_it_stopped(folder):
    begin(folder, resume=True)  # of nothing: a start
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert writer.done == {made.record(n).key for n in range(3)}
        assert not writer.is_missing(made.record(2).key)
        with pytest.raises(ValueError):
            writer.append(made.record(2))
        made.write(writer, 5)
    assert list(records(folder)) == [made.record(n) for n in range(5)]
    assert [s["first"] for s in Manifest.load(folder).segments] == [0, 3]


def test_a_run_that_is_there_is_never_mixed_in(folder):
    begin(folder)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    others = made.manifest(seed=1), made.manifest(**{"draft.files.model.safetensors": "other"})
    for manifest in (made.manifest(), *others):
        with pytest.raises(MismatchError):
            open_run(folder, manifest)
    for manifest in others:
        with pytest.raises(MismatchError):
            open_run(folder, manifest, resume=True)
    with pytest.raises(UsageError):
        open_run(folder, made.manifest(), resume=True, overwrite=True)
    assert before == {p: p.read_bytes() for p in folder.iterdir()}


def test_overwriting_moves_the_old_run_aside(folder):
    begin(folder)
    begin(folder, 1, made.manifest(seed=1), overwrite=True)
    begin(folder, 2, made.manifest(seed=2), overwrite=True)
    seeds = [
        Manifest.load(folder.with_name(name)).fingerprint["seed"]
        for name in ("run.old-1", "run.old-2", "run")
    ]
    assert seeds == [0, 1, 2]
    assert len(list(records(folder.with_name("run.old-1")))) == 3


@pytest.mark.parametrize("overwrite", [False, True])
def test_others_wait_until_a_start_is_noted(folder, monkeypatch, overwrite):
    begin(folder, 0)
    real = Manifest.save

    def save(self, where):
        with pytest.raises(InUseError):
            Lock(where / ".lock")
        real(self, where)

    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "save", save)
        begin(folder, 1, overwrite=overwrite)
    Lock(folder / ".lock").close()


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}, {"shard": (0, 2)}])
def test_a_second_writer_is_turned_away(folder, options):
    with open_run(folder, made.manifest()) as writer:
        made.write(writer, 1)
        with pytest.raises(InUseError):
            open_run(folder, made.manifest(), **options)
        made.write(writer, 2)
    assert len(list(records(folder))) == 2


def test_a_sample_that_always_fails_is_tried_three_times(folder):
    bad, key = made.record(7, error="RuntimeError: out"), made.record(7).key
    with open_run(folder, made.manifest()) as writer:
        writer.append(bad)
        made.write(writer, 1)
        assert writer.is_missing(key)
        assert writer.attempts(key) == 1
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert writer.attempts(key) == 1
        for _ in range(ATTEMPTS - 1):
            writer.append(bad)
        assert not writer.is_missing(key)
        with pytest.raises(ValueError):
            writer.append(bad)
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert key in writer.done
    assert list(records(folder)) == [made.record(0), bad]
    stored = [v for v in iterate(records_path(folder, (0, 1))) if v["error"]]
    assert [v["attempt"] for v in stored] == [1, 2, 3]


@pytest.mark.parametrize("total", [1, 3])
def test_resume_after_each_record_makes_every_repeat_once(folder, total):
    """A resume sees as done what is in the logs, and neither the next repeat nor the one before."""
    wanted = [
        replace(made.record(n, cell=cell), repeat=repeat)
        for n in range(4)
        for cell in ("c0", "c4")
        for repeat in range(3)
    ]
    for number in range(total):
        own = [record for record in wanted if belongs(record.key, (number, total))]
        for count, record in enumerate(own):
            with open_run(folder, made.manifest(), shard=(number, total), resume=True) as writer:
                left = [each.key for each in own if writer.is_missing(each.key)]
                assert left == [each.key for each in own[count:]]
                writer.append(record)
                assert not writer.is_missing(record.key)
    assert {r.key: r for r in records(folder)} == {r.key: r for r in wanted}
    assert sum(len(list(iterate(log))) for log in record_logs(folder).values()) == len(wanted)


def test_shards_work_side_by_side(folder):
    with (
        open_run(folder, made.manifest(), shard=(0, 2)) as first,
        open_run(folder, made.manifest(), shard=(1, 2)) as second,
    ):
        made.write(second, 9)
        made.write(first, 9)
        with pytest.raises(ValueError):
            first.append(
                next(r for n in range(20, 99) if not belongs((r := made.record(n)).key, (0, 2)))
            )
        with pytest.raises(MismatchError):
            open_run(folder, made.manifest(seed=1), shard=(1, 2), resume=True)
    assert len(list(records(folder))) == 9
    with pytest.raises(MismatchError):
        open_run(folder, made.manifest(), shard=(1, 2))


def test_a_run_goes_on_in_another_layout(folder):
    begin(folder, 6)
    with pytest.raises(MismatchError):
        open_run(folder, made.manifest(), shard=(0, 3))
    for number in range(3):
        begin(folder, 12, shard=(number, 3), resume=True)
    assert sorted(r.prompt_tokens for r in records(folder)) == list(range(12))


@pytest.mark.parametrize("shard", [(1, 1), (-1, 2), (0, 0)])
def test_a_shard_that_cannot_be(folder, shard):
    with pytest.raises(UsageError):
        open_run(folder, made.manifest(), shard=shard)
    assert not folder.exists()


def test_a_run_may_be_named_from_within(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.chdir(folder)
    begin(Path())
    begin(Path(), 1, overwrite=True)
    assert len(list(records(folder))) == 1
    assert len(list(records(folder.with_name("run.old-1")))) == 3


@pytest.mark.parametrize("values", [{"by": "hand"}, {"cell": [], "sample": "", "repeat": 0}])
def test_a_log_of_something_else_is_refused(folder, values):
    begin(folder, 1)
    with Log(records_path(folder, (0, 1))) as log:
        log.append({"error": None} | values)
    with pytest.raises(DataError):
        open_run(folder, made.manifest(), resume=True)


def test_the_lost_end_of_a_log_is_made_again(folder):
    begin(folder, 5)
    log = folder / "records-00-of-01.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))
    assert len(list(records(folder))) == 3
    for count in (4, 5):
        with open_run(folder, made.manifest(), resume=True) as writer:
            made.write(writer, count)
    assert list(records(folder)) == [made.record(n) for n in range(5)]
    assert [placed.segment for placed in segmented(folder)] == [0, 0, 0, 1, 2]


def test_what_a_killed_process_was_writing_is_removed_by_the_next_start(folder):
    begin(folder)
    left = [
        ".engines-00-of-01.json.123.tmp",
        ".manifest.json.4.tmp",
        ".scores-00-of-01.jsonl.5.tmp",
    ]
    others = [".engines-01-of-02.json.6.tmp", "kept.tmp"]
    for name in (*left, *others):
        (folder / name).write_text("half")
    begin(folder, resume=True)
    there = {path.name for path in folder.iterdir()}
    assert there.isdisjoint(left)
    assert there.issuperset(others)  # another shard may be at work on its own


def test_a_start_is_amended_in_the_manifest(folder):
    with open_run(folder, made.manifest()) as writer:
        writer.amend(memory={"weights": {}, "bandwidth": 2e9, "loaded": True})
        made.write(writer, 1)
        assert bandwidth_before(folder, made.manifest().provenance) is None
        writer.amend(memory={"weights": {}, "bandwidth": 5e9, "loaded": False})
    known = Manifest.load(folder)
    assert known.segments == writer.manifest.segments
    assert len(known.segments) == 1
    assert known.segments[0]["provenance"]["memory"]["bandwidth"] == 5e9
    assert bandwidth_before(folder, made.manifest().provenance) == 5e9


def test_of_two_starts_in_one_second_the_later_one_is_amended(folder, monkeypatch):
    monkeypatch.setattr("spsbench.store.manifest.now", lambda: "2026-01-01T00:00:00+00:00")
    begin(folder, 0)
    for count in (1, 2):
        with open_run(folder, made.manifest(), resume=True) as writer:
            made.write(writer, count)
            writer.add_counters("c4", {"drafted": count})
    counters = [segment.get("counters") for segment in Manifest.load(folder).segments]
    assert counters == [{"c4": {"drafted": 1}}, {"c4": {"drafted": 2}}]


def refuse_late(folder, **changed):
    """A start that is refused before its first record."""
    with pytest.raises(UsageError), open_run(folder, made.manifest(**changed)):
        raise UsageError("refused late")


def test_a_start_that_is_refused_before_its_first_record_leaves_nothing(tmp_path):
    folder = tmp_path / "run"
    refuse_late(folder)
    assert not folder.exists()
    folder.mkdir()
    refuse_late(folder)
    assert list(folder.iterdir()) == []  # a folder of the user's stays


def test_a_start_that_was_killed_before_its_first_record_is_in_nobodys_way(tmp_path):
    (tmp_path / "records-00-of-01.jsonl").touch()
    (tmp_path / "engines-00-of-01.json").write_text("{}")
    with open_run(tmp_path, made.manifest(seed=1)) as writer:
        writer.append(made.record(0))
    assert Manifest.load(tmp_path).fingerprint["seed"] == 1
    assert list(records(tmp_path)) == [made.record(0)]


def test_a_start_beside_another_that_goes_on_takes_nothing_away(tmp_path):
    with open_run(tmp_path, made.manifest(), shard=(0, 2)) as writer:
        with pytest.raises(UsageError), open_run(tmp_path, made.manifest(), shard=(1, 2)):
            raise UsageError("refused late")
        other = open_run(tmp_path, made.manifest(seed=1), shard=(1, 2))
        record = next(r for r in map(made.record, range(9)) if writer.is_missing(r.key))
        writer.append(record)
        with other, pytest.raises(MismatchError):
            other.append(next(r for r in map(made.record, range(9)) if other.is_missing(r.key)))
    assert list(records(tmp_path)) == [record]


def test_a_folder_with_anything_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CannotCreateError):
        open_run(tmp_path, made.manifest())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
