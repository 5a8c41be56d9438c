import collections
import errno
import json
import os
import random
import tracemalloc
import zlib

import pytest

from spsbench.errors import DataError, Exit, MissingError, WriteError
from spsbench.store.log import Log, encode, iterate
from tests.store import made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def fill(path, count):
    """A log as `Log` writes it, without an fsync a record."""
    values = [made.record(n).to_json() for n in range(count)]
    path.write_bytes(b"".join(encode(n, v) for n, v in enumerate(values)))
    return values


def kept(path):
    """What a new start finds."""
    found = []
    with Log(path, found.append) as log:
        assert log.count == len(found)
    return found


def test_what_is_appended_is_read(path):
    values = [made.record(n).to_json() for n in range(3)]
    with Log(path) as log:
        for each in values:
            log.append(each)
    assert list(iterate(path)) == json.loads(json.dumps(values)) == kept(path)
    expected = fill(path.with_name("other"), 3)
    assert path.read_bytes() == path.with_name("other").read_bytes()
    assert expected == values


def test_a_record_is_on_the_disk_before_append_returns(path, monkeypatch):
    calls = []
    real = {"write": os.write, "fsync": os.fsync}
    with Log(path) as log, monkeypatch.context() as patched:
        for name, call in real.items():
            patched.setattr(
                os,
                name,
                lambda *a, n=name, c=call: (calls.append((n, a[0] == log._file)), c(*a))[1],
            )
        log.append({"a": 1})
        calls.append("returned")
    assert calls == [("write", True), ("fsync", True), "returned"]


def test_a_tail_torn_at_any_byte_is_cut_and_kept(path, tmp_path):
    values = fill(path, 8)
    whole = path.read_bytes()
    ends = [n for n, byte in enumerate(whole) if byte == ord("\n")]
    tail = range(ends[5] + 1, len(whole))  # every byte of the last two
    some = random.Random(0).sample(range(ends[5]), 60)
    for number, size in enumerate((*tail, *some)):
        torn = tmp_path / f"{number}.jsonl"
        torn.write_bytes(whole[:size])
        lines = whole[:size].count(b"\n")
        assert list(iterate(torn)) == values[:lines]
        if number % 16 == 0:  # the same through a new start, which writes
            assert kept(torn) == values[:lines]
            rest = whole[:size].rpartition(b"\n")[2]
            aside = torn.with_name(f"{torn.name}.torn-1")
            assert (aside.read_bytes() if rest else b"") == rest
            with Log(torn) as log:
                for each in values[lines:]:
                    log.append(each)
            assert torn.read_bytes() == whole


def test_a_flipped_bit_is_refused_by_line_and_byte(path):
    fill(path, 40)
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(200):
        at = draw.randrange(len(whole) - 1)  # without the last newline
        flipped = bytearray(whole)
        flipped[at] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        line = whole[:at].count(b"\n") + 1
        start = whole.rfind(b"\n", 0, at) + 1
        with pytest.raises(DataError, match=rf"line {line}, byte {start}\)"):
            list(iterate(path))
    with pytest.raises(DataError):  # nor does a start touch it
        Log(path)
    assert path.read_bytes() == flipped


def test_a_flipped_newline_at_the_end_reads_as_torn(path):
    values = fill(path, 3)
    path.write_bytes(path.read_bytes()[:-1] + b"\x0b")
    assert list(iterate(path)) == values[:2]


@pytest.mark.parametrize(("torn", "size"), [(b"", 1), (b'{"n":3,"tok', 4096)])
def test_zeros_at_the_end_are_cut(path, torn, size):
    values = fill(path, 3)
    path.write_bytes(path.read_bytes() + torn + bytes(size))
    assert kept(path) == values


def test_a_last_record_whose_first_page_was_lost_is_cut(path):
    values = fill(path, 3)
    last = encode(3, made.record(3).to_json())
    path.write_bytes(path.read_bytes() + bytes(50) + last[50:])
    assert kept(path) == values


def test_one_zero_in_the_last_record_is_a_flipped_bit(path):
    fill(path, 3)
    head, _, tail = path.read_bytes().rpartition(b" ")
    path.write_bytes(head + b"\0" + tail)
    with pytest.raises(DataError, match="line 3"):
        list(iterate(path))


def test_zeros_in_the_middle_are_refused(path):
    fill(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + bytes(20) + lines[1][20:] + lines[2])
    with pytest.raises(DataError, match="line 2"):
        list(iterate(path))


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda x: x[:2] + x[3:], 3),
        (lambda x: [x[0], x[2], x[1], *x[3:]], 2),
        (lambda x: [*x[:2], x[1], *x[2:]], 3),
        (lambda x: [*x[:2], b"\n", *x[2:]], 3),
        (lambda x: [*x[:2], b'{"n": 2, "by": "hand"}\n', *x[3:]], 3),
        (lambda x: x[1:], 1),
    ],
    ids=["deleted", "swapped", "duplicated", "empty", "written", "beheaded"],
)
def test_lines_edited_by_hand_are_refused(path, edit, line):
    fill(path, 5)
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(DataError, match=f"line {line},"):
        list(iterate(path))


@pytest.mark.parametrize("body", [b"[0]", b'{"n":"0"}', b"{", b"[" * 100_000, b'{"n":0,"a":\xff}'])
def test_a_right_checksum_over_nonsense_is_refused(path, body):
    head = body[:-1]
    path.write_bytes(head + b',"crc":"' + f'{zlib.crc32(head):08x}"}}\n'.encode())
    with pytest.raises(DataError, match="line 1, byte 0"):
        list(iterate(path))


@pytest.mark.parametrize(("call", "number"), [("write", errno.ENOSPC), ("fsync", errno.EIO)])
def test_a_failed_call_leaves_the_log_as_it_was(path, monkeypatch, call, number):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    with Log(path) as log:
        log.append({"a": 1})
        before = path.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(WriteError, match=os.strerror(number)) as raised:
                log.append({"a": 2})
        assert raised.value.code == Exit.CANNOT_WRITE == 74
        assert path.read_bytes() == before
        with pytest.raises(WriteError):  # an fsync that failed is not tried again
            log.append({"a": 2})
    assert kept(path) == [{"a": 1}]


def test_a_write_in_two_parts_is_whole(path, monkeypatch):
    real = os.write
    with Log(path) as log, monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: real(file, data[:7]))
        log.append({"a": "b" * 50})
    assert kept(path) == [{"a": "b" * 50}]


def test_a_full_disk_keeps_whole_records(path):
    values = made.record(1).to_json()
    with Log(path) as log:
        with made.small_files(5000), pytest.raises(WriteError, match="File too large"):
            collections.deque(map(log.append, [values] * 100))
        count = log.count
    assert count > 2
    assert kept(path) == [values] * count  # and there is no torn tail
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with Log(path) as log:
        log.append(values)
    assert kept(path) == [values] * (count + 1)


def test_a_log_that_was_removed_or_changed_is_not_written_on(path):
    with Log(path) as log:
        log.append({"a": 1})
        path.unlink()
        with pytest.raises(WriteError, match="removed"):
            log.append({"a": 2})
    path.unlink(missing_ok=True)
    with Log(path) as log:
        log.append({"a": 1})
        path.write_bytes(b"something else\n")
        with pytest.raises(WriteError, match="another program"):
            log.append({"a": 2})
    assert path.read_bytes() == b"something else\n"


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"a": float("inf")}, {"n": 1}, {"crc": 1}])
def test_what_cannot_be_read_back_is_not_written(path, values):
    with Log(path) as log:
        with pytest.raises(ValueError, match=r"Out of range|the log itself"):
            log.append(values)
        log.append({"a": 1})
    assert kept(path) == [{"a": 1}]


def test_a_log_that_is_not_there_or_cannot_be_made(path):
    with pytest.raises(MissingError):
        list(iterate(path))
    with pytest.raises(WriteError):
        Log(path / "below" / "nothing")


def test_reading_holds_one_record_at_a_time(path):
    fill(path, 2000)
    tracemalloc.start()
    try:
        for _ in iterate(path):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 4
