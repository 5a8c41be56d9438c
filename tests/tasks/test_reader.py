"""Whatever is in a data file, the user hears where and what, in one line."""

import gzip
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from spsbench.errors import DataError, MissingError, SpsError
from spsbench.settings.task import Sample
from spsbench.tasks import reader
from spsbench.tasks.reader import FileRow, drop_repeated, read_rows

GOOD = b'{"id": 1, "prompt": "a"}\n'
ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]


def written(folder, content, name="data.jsonl"):
    path = folder / name
    path.write_bytes(content)
    return path


def complaint(path):
    with pytest.raises(SpsError) as caught:
        list(read_rows(path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def as_jsonl():
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.mark.parametrize("form", ["jsonl", "gzip", "parquet", "folder", "splits", "files"])
def test_every_form_gives_the_same_rows(tmp_path, form, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data"  # the name says nothing
    if form == "jsonl":
        path.write_bytes(as_jsonl())
    elif form == "gzip":
        path.write_bytes(gzip.compress(as_jsonl()))
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)
    elif form == "files":
        path.mkdir()
        (path / "rows.jsonl").write_bytes(as_jsonl())
    else:
        rows, other = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:1])
        splits = datasets.DatasetDict(train=other, test=rows)
        (rows if form == "folder" else splits).save_to_disk(str(path))
    assert [row.values for row in read_rows(path)] == ROWS


def test_marks_and_line_ends_of_other_systems_are_read_over(tmp_path):
    content = b'\xef\xbb\xbf{"id": "\xc3\xa9"}\r\n\r\n  \n{"id": 2}'
    read = list(read_rows(written(tmp_path, content)))
    assert [row.values for row in read] == [{"id": "é"}, {"id": 2}]
    assert read[1].where.endswith("data.jsonl:4")


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"id": "\xff"}\n', b'{"id": 1, "prompt": "a', b'{"id": 1,}\n', b"[1, 2]\n", b"null\n"),
        b'{"id": ' + b"9" * 5000 + b"}\n",
        *(b'{"a": ' + b"[" * 100_000 + b"\n", b'{"a":' * 100_000 + b"\n"),
    ],
    ids=lambda line: repr(line[:20]),
)
def test_a_bad_line_is_named(tmp_path, line):
    message = complaint(written(tmp_path, GOOD + line))
    assert "data.jsonl:2" in message
    assert ("cut off" in message) is not line.endswith(b"\n")


def test_a_line_without_end_is_not_read_into_memory(tmp_path):
    bomb = gzip.compress(bytes(reader.LINE_LIMIT + (1 << 20)), 1)
    assert len(bomb) < 1 << 20
    assert "longer than 16 MiB" in complaint(written(tmp_path, bomb))


def test_a_long_list_of_texts_over_lines_is_no_list_of_prompts(tmp_path):
    path = written(tmp_path, json.dumps(["x" * 1000] * 17_000, indent=0).encode())
    with pytest.raises(DataError):
        list(read_rows(path, "prompt"))


def test_a_gzip_of_many_lines_is_capped(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "SIZE_LIMIT", 1 << 16)
    assert "GiB of data" in complaint(written(tmp_path, gzip.compress(GOOD * 10_000)))
    table = pyarrow.Table.from_pydict({"id": list(range(100_000))})
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet")
    assert "GiB of data" in complaint(tmp_path / "data.parquet")


def flipped():
    content = bytearray(gzip.compress(GOOD * 99, mtime=0))
    content[-6] ^= 1  # of the checksum
    return bytes(content)


WHOLE = gzip.compress(GOOD * 999, mtime=0)


@pytest.mark.parametrize(
    "content",
    [WHOLE[:5], WHOLE[:40], WHOLE[:-1], flipped(), b"PAR1 and nothing else"],
    ids=["five bytes", "forty bytes", "a byte short", "a bit flipped", "not parquet"],
)
def test_a_damaged_file_is_named(tmp_path, content):
    assert "unreadable" in complaint(written(tmp_path, content))


def test_a_folder_without_data_or_with_other_splits_and_no_file(tmp_path):
    assert "no data set" in complaint(tmp_path)
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=rows, dev=rows).save_to_disk(str(tmp_path / "splits"))
    assert "train, dev" in complaint(tmp_path / "splits")
    with pytest.raises(MissingError):
        list(read_rows(tmp_path / "nowhere"))


@pytest.mark.parametrize("values", [{}, {"prompt": None}, {"prompt": 3}])
def test_a_text_is_a_text(values):
    with pytest.raises(DataError):
        FileRow("data.jsonl:7", values).text("prompt")


@pytest.mark.parametrize("value", ["", None, True, 1.5, ["a"]])
def test_an_id_is_a_text_or_a_whole_number(value):
    assert FileRow("f:1", {"id": 7}).name("id") == FileRow("f:1", {"id": "7"}).name("id") == "7"
    with pytest.raises(DataError):
        FileRow("f:1", {"id": value}).name("id")


def test_equal_repetitions_are_counted_and_others_refused():
    one, two = Sample("1", "a"), Sample("2", "b")
    assert drop_repeated([("f:1", one), ("f:2", two), ("f:3", Sample("1", "a"))]) == ([one, two], 1)
    with pytest.raises(DataError):
        drop_repeated([("f:1", one), ("f:2", Sample("1", "b"))])
