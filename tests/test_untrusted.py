"""Input from outside ends in values or in one line, whatever it holds."""

import gzip
import os
import pty
import tracemalloc

import pytest

from spsbench import untrusted
from spsbench.errors import DataError, MissingError, PermissionDeniedError, SpsError, UsageError
from spsbench.hardware import files
from spsbench.untrusted import FieldError, NotJSONError

WHAT = "a log"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", NotJSONError),
        (b'{"a": 1', NotJSONError),
        (b"\xff{}", NotJSONError),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", NotJSONError),
        ('{"a": 1}'.encode("utf-16"), NotJSONError),
        (b"[" * 100_000, FieldError),
        (b"[" * 300 + b"]" * 300, FieldError),
        (b'{"a":' * 300 + b"1" + b"}" * 300, FieldError),
        (b"1" * 5000, FieldError),
        (b"-" + b"1" * 5000, FieldError),
        (b"[NaN]", FieldError),
        (b"[-Infinity]", FieldError),
        (rb'"\ud83d"', FieldError),
        (rb'{"\uDC00": 1}', FieldError),
        (b"[" + b"[]," * 5_000_000 + b"1]", FieldError),
        (b"[" + b" " * 40_000_000, FieldError),
    ],
    ids=lambda value: value[:12].decode(errors="replace") if isinstance(value, bytes) else "",
)
def test_hostile_json_is_refused_in_one_line_before_it_is_built(data, kind):
    tracemalloc.start()
    with pytest.raises(kind) as error:
        untrusted.parse_json(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert peak < 50 * 2**20
    assert isinstance(error.value, SpsError)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\\ud83d"', r"\ud83d"),
        (b'["' + b"[" * 1000 + b'"]', ["[" * 1000]),
        (b'["' + b'\\"[' * 1000 + b'"]', ['"[' * 1000]),
        (b"[" + b"[]," * 1000 + b"[]]", [[]] * 1001),
        (b"[" * 150 + b"]" * 150, None),
    ],
)
def test_honest_json_is_read(data, value):
    parsed = untrusted.parse_json(data)
    assert value is None or parsed == value


def test_commas_in_texts_are_no_values():
    assert untrusted.parse_json(b'["' + b"," * 100 + b'"]', values=10) == ["," * 100]
    with pytest.raises(FieldError):
        untrusted.parse_json(b"[" + b"1," * 100 + b"1]", values=10)


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_plain_and_packed_files_read_alike_without_their_byte_order_mark(tmp_path, pack):
    path = write(tmp_path / "a.json", pack(b"\xef\xbb\xbf[1]"))
    assert untrusted.read_json(path, WHAT) == [1]
    with untrusted.open_untrusted(path, WHAT) as (file, _):
        assert list(file) == [b"[1]"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda folder: "~nosuchuser/x", MissingError),
        (lambda folder: "a\0b", MissingError),
        (lambda folder: "a\ud800b", MissingError),
        (lambda folder: folder / "absent\x1b[31m", MissingError),
        (lambda folder: write(folder / "file", b"") / "below", MissingError),
        (lambda folder: folder, DataError),
        (lambda folder: "/dev/zero", DataError),
        (lambda folder: os.ttyname(pty.openpty()[1]), DataError),
        (lambda folder: write(folder / "cut.gz", gzip.compress(b"[1]" * 99)[:-20]), DataError),
        (lambda folder: write(folder / "bomb.gz", gzip.compress(b" " * 70_000_000)), DataError),
        (lambda folder: os.mkfifo(folder / "pipe") or folder / "pipe", DataError),
    ],
)
def test_no_readable_file_is_one_line(tmp_path, make, kind):
    with pytest.raises(kind) as error:
        untrusted.read_json(make(tmp_path), WHAT)
    assert str(error.value).isprintable()


def test_a_file_without_permission_is_refused(tmp_path):
    path = write(tmp_path / "a.json", b"[1]")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(PermissionDeniedError):
        untrusted.read_json(path, WHAT)


def test_a_pipe_is_read_to_its_end_and_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SILENCE", 0.01)
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "wb", buffering=0) as sink:
        sink.write(b"[1]")
        with pytest.raises(DataError):
            untrusted.read_untrusted(f"/dev/fd/{reader}", WHAT)
        sink.write(b"[2]")
        sink.close()
        assert untrusted.read_untrusted(f"/dev/fd/{reader}", WHAT) == b"[2]"


@pytest.mark.parametrize(
    "content",
    [
        b"a =",
        b"a = {b = '''\n' ''', " + b"'c'." * 1000 + b"d = 1}",
        b"a = 1\na = 2",
        b"\xff = 1",
        b"a = " + b"[" * 5000,
        b"a = " + b"1" * 5000,
        b"a" + b".a" * 20_000 + b"=1",
        b'"\\"" . ' * 1000 + b"a = 1",
        b"[" + b"a . " * 1000 + b"a]",
        b"b = {" + b"'a'." * 1000 + b"a = 1}",
    ],
    ids=lambda content: content[:8].decode(errors="replace"),
)
def test_hostile_toml_is_refused_in_one_line(tmp_path, content):
    tracemalloc.start()
    with pytest.raises(UsageError) as error:
        untrusted.read_toml(write(tmp_path / "a.toml", content), "an experiment")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value).isprintable()
    assert peak < 10 * 2**20


def test_toml_with_a_byte_order_mark_and_many_dots_is_read(tmp_path):
    path = write(tmp_path / "a.toml", b'\xef\xbb\xbfa.b = "' + b"a." * 500 + b'" # ' + b"a." * 500)
    assert untrusted.read_toml(path, "an experiment") == {"a": {"b": "a." * 500}}


def test_text_from_outside_is_made_printable():
    shown = untrusted.cut("a\x1b[31m\u202e\ud800\u200b\nb\x00" + "x" * 100)
    assert shown.isprintable()
    assert shown.endswith("x...")
    assert untrusted.cut([10**5000]).isprintable()
