import gzip
import lzma
import shutil
from pathlib import Path

import pytest

from spsbench.errors import InUseError, MismatchError, UsageError
from spsbench.store.log import iterate
from spsbench.store.manifest import RUN_SCHEMA, Manifest
from spsbench.store.records import placed_records, records
from spsbench.store.run import ATTEMPTS, open_run
from spsbench.store.run_folder import records_path
from spsbench.store.starts import Memory, Provenance
from tests.golden.make import GOLDEN
from tests.store import made


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_goes_on_where_it_stopped_and_leaves_its_manifest(folder):
    made.run(folder, range(3), resume=True)  # of nothing: a start
    manifest = files(folder)["manifest.json"]
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert writer.done == {made.record(n).key for n in range(3)}
        with pytest.raises(ValueError):
            writer.append(made.record(2))
        writer.start(Provenance(threads=2))
        made.write(writer, range(5))
    made.run(folder, range(5), resume=True)  # of all: no start
    assert files(folder).keys() == {"manifest.json", "records-00-of-01.jsonl"}
    assert [placed.record for placed in placed_records(folder)] == [
        made.record(n) for n in range(5)
    ]
    starts = {id(placed.start): placed.start for placed in placed_records(folder)}.values()
    assert [start.provenance.threads for start in starts] == [1, 2]
    assert files(folder)["manifest.json"] == manifest
    assert writer.count == 5


@pytest.mark.parametrize("module", [gzip, lzma])
def test_a_packed_run_is_read_and_not_gone_on_with(module, tmp_path):
    run = shutil.copytree(GOLDEN / str(RUN_SCHEMA), tmp_path / "run")
    kept, log = list(records(run)), run / "records-00-of-01.jsonl"
    packed = log.with_name(f"{log.name}.{'gz' if module is gzip else 'xz'}")
    packed.write_bytes(module.compress(log.read_bytes()))
    log.unlink()
    assert list(records(run)) == kept
    with pytest.raises(UsageError, match="packed records"):
        open_run(run, Manifest.load(run), resume=True)


def test_a_run_that_is_there_is_never_mixed_in(folder):
    made.run(folder, range(3))
    before = files(folder)
    others = made.manifest(seed=1), made.manifest(**{"draft.files.model.safetensors": "other"})
    for manifest in (made.manifest(), *others):
        for shard in ((0, 1), (0, 3)):
            with pytest.raises(MismatchError):
                open_run(folder, manifest, shard=shard)
    for manifest in others:
        with pytest.raises(MismatchError):
            open_run(folder, manifest, resume=True)
    with pytest.raises(UsageError):
        open_run(folder, made.manifest(), resume=True, overwrite=True)
    assert before == files(folder)


def test_overwriting_moves_the_old_run_aside(folder, monkeypatch):
    for number in range(3):
        made.run(folder, range(number + 1), made.manifest(seed=number), overwrite=True)
    monkeypatch.chdir(folder)
    made.run(Path(), range(4), made.manifest(seed=3), overwrite=True)  # named from within
    for number, name in enumerate(("run.old-1", "run.old-2", "run.old-3", "run")):
        assert Manifest.load(folder.with_name(name)).fingerprint["seed"] == number
        assert len(list(records(folder.with_name(name)))) == number + 1


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}, {"shard": (0, 2)}])
def test_a_second_writer_is_turned_away(folder, options):
    with open_run(folder, made.manifest()) as writer:
        made.write(writer, range(1))
        with pytest.raises(InUseError):
            open_run(folder, made.manifest(), **options)
        made.write(writer, range(2))
    assert len(list(records(folder))) == 2


def test_a_sample_that_always_fails_is_tried_three_times(folder):
    bad, key = made.record(7, error="RuntimeError: out"), made.record(7).key
    with open_run(folder, made.manifest()) as writer:
        writer.append(bad)
        made.write(writer, range(1))
        assert writer.is_missing(key)
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert writer.is_missing(key)
        for _ in range(ATTEMPTS - 1):
            writer.append(bad)
        with pytest.raises(ValueError):
            writer.append(bad)
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert key in writer.done
    assert list(records(folder)) == [made.record(0), bad]
    failed = [values for values in iterate(records_path(folder, (0, 1))) if values["error"]]
    assert [values["attempt"] for values in failed] == [1, 2, 3]


def test_shards_work_side_by_side_and_another_configuration_is_refused(folder):
    with (
        open_run(folder, made.manifest(), shard=(0, 2)) as first,
        open_run(folder, made.manifest(), shard=(1, 2)) as second,
    ):
        made.write(second, range(9))
        made.write(first, range(9))
        with pytest.raises(ValueError):
            first.append(next(r for r in map(made.record, range(99)) if r.key in second.done))
        with pytest.raises(MismatchError):
            open_run(folder, made.manifest(seed=1), shard=(1, 2), resume=True)
    assert len(list(records(folder))) == 9
    with pytest.raises(MismatchError):
        open_run(folder, made.manifest(), shard=(1, 2))
    for shard in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(UsageError):
            open_run(folder, made.manifest(), shard=shard, resume=True)


def test_a_start_beside_another_that_goes_on_takes_nothing_away(folder):
    with open_run(folder, made.manifest(), shard=(0, 2)) as writer:
        with pytest.raises(UsageError), open_run(folder, made.manifest(), shard=(1, 2)):
            raise UsageError("refused late")
        other = open_run(folder, made.manifest(seed=1), shard=(1, 2))
        record = next(r for r in map(made.record, range(9)) if writer.is_missing(r.key))
        writer.append(record)
        with other, pytest.raises(MismatchError):
            other.append(next(r for r in map(made.record, range(9)) if other.is_missing(r.key)))
    assert list(records(folder)) == [record]


def test_what_a_killed_process_was_writing_is_removed_by_the_next_start(folder):
    made.run(folder, range(3))
    drafts = [
        ".summary-00-of-01.json.123.tmp",
        ".manifest.json.4.tmp",
        ".scores-00-of-01.jsonl.5.tmp",
    ]
    others = {".scores-01-of-02.jsonl.6.tmp", "kept.tmp"}
    for name in (*drafts, *others):
        (folder / name).write_text("half")
    made.run(folder, range(3), resume=True)
    assert files(folder).keys().isdisjoint(drafts)
    assert files(folder).keys() >= others  # another shard may be at work on its own


def test_notes_are_added_to_the_start_of_this_process(folder):
    for count in (1, 2):
        with open_run(folder, made.manifest(), resume=True) as writer:
            writer.start(Provenance(threads=count, memory=Memory(2e9, loaded=True)))
            writer.note(engines={"m": {"engine": "fast", "threads": count}})
            made.write(writer, range(count))
            writer.start(Provenance(), "worker")
            writer.note(counters={"c4": {"drafted": count}})
            writer.note(counters={"c4": {"drafted": 1}}, memory=Memory(5e9))
    starts = [placed.start for placed in list(placed_records(folder))]
    assert [start.provenance.threads for start in starts] == [1, 2]
    assert [start.provenance.memory for start in starts] == [Memory(5e9)] * 2
    assert [start.counters for start in starts] == [{"c4": {"drafted": 2}}, {"c4": {"drafted": 3}}]
    assert [start.engines["m"]["threads"] for start in starts] == [1, 2]
    with open_run(folder, made.manifest(), resume=True) as writer:
        assert [start.provenance.threads for start in writer.starts] == [1, 2]
        assert writer.engines == {"m": {"engine": "fast", "threads": 2}}


def test_a_start_that_is_refused_before_its_first_record_leaves_nothing(folder):
    made.run(folder, range(0))
    assert not folder.exists()
    folder.mkdir()
    made.run(folder, range(0))
    assert list(folder.iterdir()) == []  # a folder of the user's stays


def test_a_start_that_was_killed_before_its_first_record_is_in_nobodys_way(tmp_path):
    (tmp_path / "records-00-of-01.jsonl").touch()
    made.run(tmp_path, range(1), made.manifest(seed=1))
    assert Manifest.load(tmp_path).fingerprint["seed"] == 1
    assert list(records(tmp_path)) == [made.record(0)]
