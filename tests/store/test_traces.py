"""Traces on disk: whole, small, resumable, and never of two things at once."""

from dataclasses import replace

import numpy as np
import pytest

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.store.log import encode
from spsbench.store.trace_records import DraftOf, Drawn, Head, Proposed, Written
from spsbench.store.traces import TraceWriter, read_traces

HEAD = Head({"target.id": "t", "target.tokenizer": "aa", "sampling.temperature": 1.0})
MODEL = DraftOf(name="model d", identity={"drafter": "model", "id": "d"}, sampled=True)
RULE = DraftOf(name="ngram", identity={"drafter": "ngram"}, sampled=False, most=16)
L = 100


def text(sample="a", length=L):
    values = np.random.default_rng(0).random(length)
    key = ("cell", sample, 0)
    return Written(
        key=key, prompt_tokens=7, budget=length, finish="length", q=values, entropy=values
    )


def drawn(length=L):
    v = np.random.default_rng(1).random(length)
    return Drawn(p=v, overlap=v, entropy=v, peak=v, agrees=v > 0.5, reach=50)


def looked(length=L):
    v = np.arange(length, dtype=np.uint8)
    return Proposed(proposed=v, hits=v // 2)


def write(path, samples=("a",), head=HEAD):
    with TraceWriter(path, head) as writer:
        for draft in (MODEL, RULE):
            writer.declare(draft)
        for sample in samples:
            one = text(sample)
            writer.add_text(one)
            writer.add(one.key, MODEL.name, drawn())
            writer.add(one.key, RULE.name, looked())


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "traces-x-00-of-01.jsonl"
    write(path)
    for where in (path, tmp_path):
        found = read_traces([where])
        assert found.head == HEAD
        assert found.tokens == L
        ((one, along),) = found.of(MODEL.name)
        assert np.array_equal(one.q, text().q.astype(np.float32))
        assert isinstance(along, Drawn)
        assert along.reach == 50
        assert np.array_equal(along.agrees, drawn().agrees)
        ((_, other),) = found.of(RULE.name)
        assert isinstance(other, Proposed)
        assert np.array_equal(other.hits, looked().hits)


def test_a_token_takes_few_bytes(tmp_path):
    path = tmp_path / "t.jsonl"
    write(path, ("a", "b", "c"))
    assert path.stat().st_size < 100 * 2 * 3 * L  # bytes a token and draft, all in


def test_what_is_there_is_not_written_again(tmp_path):
    path = tmp_path / "t.jsonl"
    write(path)
    before = path.read_bytes()
    write(path)
    assert path.read_bytes() == before
    path.write_bytes(before[:-30])  # killed while it wrote
    write(path)
    assert path.read_bytes() == before
    with TraceWriter(path, HEAD) as writer:  # a schedule is asked for later
        more = replace(drawn(), stops={"confidence": np.ones(L, np.uint8)})
        writer.add(("cell", "a", 0), MODEL.name, more)
        assert writer.has(("cell", "a", 0), MODEL.name, ["confidence"])
    assert len(read_traces([path]).of(MODEL.name)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("target.tokenizer", "bb"), ("sampling.temperature", 0.5), ("target.revision", "main")],
)
def test_traces_of_other_texts_are_refused(tmp_path, field, value):
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    write(one)
    other = Head({**HEAD.identity, field: value})
    write(two, ("b",), other)
    with pytest.raises(MismatchError):
        read_traces([one, two])
    with pytest.raises(MismatchError):
        TraceWriter(one, other)


def test_another_chat_template_and_another_draft_of_a_name_are_refused(tmp_path):
    paths = chat, plain = tmp_path / "chat.jsonl", tmp_path / "plain.jsonl"
    heads = HEAD._replace(chat=True, system="Be brief."), HEAD._replace(chat=False)
    for path, head in zip(paths, heads, strict=True):
        write(path, (path.stem,), head)
        assert read_traces([path]).head == head
    with pytest.raises(MismatchError):
        read_traces([chat, plain])
    other = replace(MODEL, identity={**MODEL.identity, "files": "ff"})
    with TraceWriter(plain, heads[1]) as writer, pytest.raises(MismatchError):
        writer.declare(other)


def test_damage_and_strangers_are_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:-5] + b"0" + lines[1][-4:], *lines[2:]]))
    with pytest.raises(DataError):
        read_traces([path])
    strange = tmp_path / "s.jsonl"
    write(strange)
    strange.write_bytes(encode(0, {"cell": "x"}))
    with pytest.raises(DataError):
        read_traces([strange])
    strange.write_bytes(b"")
    with pytest.raises(MissingError):
        read_traces([strange])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MissingError):
        read_traces([empty])
