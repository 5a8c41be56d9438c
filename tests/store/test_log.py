import collections
import errno
import fcntl
import os
import re
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spsbench.errors import DataError, InUseError, MissingError, WriteError
from spsbench.store.log import Log, encode_record, iterate
from tests.store import made

QUICK = settings(derandomize=True, deadline=None, database=None, max_examples=25)
TEXT = st.text(st.characters(), max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.dictionaries(TEXT.filter(lambda name: name not in ("n", "crc")), JSON, max_size=3)


class Kills(RuleBasedStateMachine):
    """A log whose writers are killed at any byte, and what it then must hold: `records`."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "records.jsonl"
        self.records, self.torn = [], []
        self.log = Log(self.path)

    def teardown(self):
        self.log.close()
        self.folder.cleanup()

    def reopen(self):
        read = []
        self.log = Log(self.path, read.append)
        assert read == self.records

    @rule(values=RECORDS)
    def append(self, values):
        self.log.append(values)
        self.records.append(values)

    @rule(values=RECORDS, part=st.floats(0, 1, exclude_max=True), zeros=st.integers(0, 3))
    def kill_while_a_record_is_written(self, values, part, zeros):
        """The part of a record that reached the disk, as it is, or with pages that did not."""
        self.log.close()
        line = encode_record(len(self.records), values)
        line = line[: int(part * len(line))]
        line = [line, bytes(len(line)), line + bytes(4096), bytes(2) + line[2:]][zeros]
        whole = self.path.read_bytes()
        self.path.write_bytes(whole + line)
        self.torn += [line] if line else []
        assert list(iterate(self.path)) == self.records
        self.reopen()
        assert self.path.read_bytes() == whole

    @rule()
    def close_and_go_on(self):
        self.log.close()
        self.reopen()

    @rule()
    def open_a_second_writer(self):
        with pytest.raises(InUseError):
            Log(self.path)

    @rule(values=RECORDS, part=st.integers(0, 9), call=st.sampled_from(["write", "fsync"]))
    def fail_to_append(self, values, part, call):
        """The disk is full or broken: the record is taken back, the log takes no other."""
        write = os.write

        def fail(file, data=b""):
            if data and part:
                write(file, data[:part])
            if not data:  # the disk is waited for with the record in the file
                assert self.path.read_bytes().endswith(encode_record(len(self.records), values))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(WriteError):
                self.log.append(values)
        with pytest.raises(WriteError):
            self.log.append(values)
        self.reopen()

    @rule()
    def remove_the_file_and_copy_it_back(self):
        whole = self.path.read_bytes()
        self.path.unlink()
        with pytest.raises(WriteError):
            self.log.append({})
        with pytest.raises(MissingError):
            list(iterate(self.path))
        self.path.write_bytes(whole)
        self.reopen()

    @precondition(lambda self: self.records)
    @rule()
    def change_the_file_from_outside(self):
        whole = self.path.read_bytes()
        self.path.write_bytes(b"something else\n")
        with pytest.raises(WriteError):
            self.log.append({})
        assert self.path.read_bytes() == b"something else\n"
        for _ in range(2):  # a start that is refused lets go of the lock
            with pytest.raises(DataError):
                Log(self.path)
        self.path.write_bytes(whole)
        self.reopen()

    @invariant()
    def holds_what_was_appended(self):
        assert list(iterate(self.path)) == self.records
        assert self.path.read_bytes() == b"".join(map(encode_record, range(99), self.records))
        aside = self.path.parent.glob("*.torn-*")
        assert sorted(path.read_bytes() for path in aside) == sorted(self.torn)


TestKills = Kills.TestCase
TestKills.settings = settings(QUICK, stateful_step_count=10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def fill(path, count):
    """Write a log as `Log` does, without an fsync a record."""
    values = [made.record(n).to_json() for n in range(count)]
    path.write_bytes(b"".join(map(encode_record, range(count), values)))


EDITS = {
    "deleted": (1, lambda x: x[1:]),
    "swapped": (2, lambda x: [x[0], x[2], x[1], *x[3:]]),
    "written": (3, lambda x: [*x[:2], b'{"n": 2, "by": "hand"}\n', *x[3:]]),
    "zeros": (2, lambda x: [x[0], bytes(20) + x[1][20:], *x[2:]]),
    "one zero": (5, lambda x: [*x[:4], x[4].replace(b" ", b"\0", 1)]),
    "a flipped bit": (5, lambda x: [*x[:4], re.sub(rb'_tokens":\d', b'_tokens":9', x[4])]),
    "a flipped end": (1, lambda x: [x[0][:-1] + b"\x0b", *x[1:]]),
}


@pytest.mark.parametrize(("line", "edited"), EDITS.values(), ids=EDITS)
def test_edited_lines_are_refused(path, line, edited):
    fill(path, 5)
    path.write_bytes(b"".join(edited(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(DataError) as refused:
        list(iterate(path))
    assert f"line {line}," in str(refused.value)


@pytest.mark.parametrize("body", [b"[0]", b'{"n":"0"}', b"{", b"[" * 100_000, b'{"n":0,"a":\xff}'])
def test_a_right_checksum_over_nonsense_is_refused(path, body):
    head = body[:-1]
    path.write_bytes(head + b',"crc":"' + f'{zlib.crc32(head):08x}"}}\n'.encode())
    with pytest.raises(DataError):
        list(iterate(path))


def test_a_full_disk_keeps_whole_records(path):
    values = made.record(1).to_json()
    with Log(path) as log:
        with made.small_files(5000), pytest.raises(WriteError):
            collections.deque(map(log.append, [values] * 100))
        count = log.count
    assert count > 2
    assert list(iterate(path)) == [values] * count
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"a": float("inf")}, {"n": 1}, {"crc": 1}])
def test_values_that_cannot_be_read_back_are_not_written(path, values):
    with Log(path) as log:
        with pytest.raises(ValueError):
            log.append(values)
        log.append({"a": 1})
    assert list(iterate(path)) == [{"a": 1}]


def test_reading_holds_one_record_at_a_time(path):
    fill(path, 2000)
    tracemalloc.start()
    try:
        collections.deque(iterate(path), 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 4


def test_a_log_whose_folder_moves_while_it_is_opened_is_in_use(path, monkeypatch):
    flock = fcntl.flock

    def move(file, how):
        path.rename(path.with_name("old"))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", move)
    with pytest.raises(InUseError):
        Log(path)
    assert [place.name for place in path.parent.iterdir()] == ["old"]
