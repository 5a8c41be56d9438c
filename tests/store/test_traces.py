"""Traces on disk: whole, small, resumable, and never of two things at once."""

from dataclasses import replace

import numpy as np
import pytest

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.settings.method import Drafting
from spsbench.store.log import encode_record, iterate
from spsbench.store.traces import (
    DraftOf,
    Proposed,
    SampledDraft,
    TraceSource,
    TraceWriter,
    Written,
    read_traces,
    trace_files,
)

HEAD = TraceSource({"target.id": "t", "target.tokenizer": "aa", "sampling.temperature": 1.0})
MODEL = DraftOf(
    name=Drafting.parse("model d"), identity={"drafter": "model", "id": "d"}, sampled=True
)
RULE = DraftOf(name=Drafting.parse("ngram"), identity={"drafter": "ngram"}, sampled=False, most=16)
L = 100
UNIT, BYTES = np.random.default_rng(0).random(L), np.arange(L, dtype=np.uint8)
DRAWN = SampledDraft(p=UNIT, overlap=UNIT, entropy=UNIT, peak=UNIT, agrees=UNIT > 0.5, reach=50)
PROPOSED = Proposed(proposed=BYTES, hits=BYTES // 2)


def write(path, samples=("a",), head=HEAD):
    with TraceWriter(path, head) as writer:
        for draft in (MODEL, RULE):
            writer.declare(draft)
        for sample in samples:
            key = ("cell", sample, 0)
            writer.add_text(
                Written(key=key, prompt_tokens=7, budget=L, finish="length", q=UNIT, entropy=UNIT)
            )
            writer.add(key, MODEL.name, DRAWN)
            writer.add(key, RULE.name, PROPOSED)


def test_what_is_written_is_read_and_small(tmp_path):
    path = tmp_path / "traces-x-00-of-01.jsonl"
    write(path, ("a", "b", "c"))
    for place in (path, tmp_path):
        traces = read_traces([place])
        assert traces.head == HEAD
        assert len(traces.texts) == 3
        (text, along), *_ = traces.of(MODEL.name)
        assert text.key == ("cell", "a", 0)
        assert np.array_equal(text.q, UNIT.astype(np.float32))
        assert isinstance(along, SampledDraft)
        assert along.reach == 50
        assert np.array_equal(along.agrees, DRAWN.agrees)
        (_, other), *_ = traces.of(RULE.name)
        assert isinstance(other, Proposed)
        assert np.array_equal(other.hits, PROPOSED.hits)
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
        more = replace(DRAWN, stops={"confidence": np.ones(L, np.uint8)})
        writer.add(("cell", "a", 0), MODEL.name, more)
        assert writer.has(("cell", "a", 0), MODEL.name, ["confidence"])
        writer.declare(replace(MODEL, exact=False))
    traces = read_traces([path])
    assert len(traces.of(MODEL.name)) == 1
    assert not traces.drafts[MODEL.name].exact


@pytest.mark.parametrize(
    "other",
    [TraceSource({**HEAD.identity, "target.revision": "main"}), replace(HEAD, chat=True)],
    ids=["revision", "chat"],
)
def test_traces_of_other_texts_are_refused(tmp_path, other):
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    write(one)
    write(two, ("b",), other)
    assert read_traces([two]).head == other
    with pytest.raises(MismatchError):
        read_traces([one, two])
    with pytest.raises(MismatchError):
        TraceWriter(one, other)
    with TraceWriter(one, HEAD) as writer, pytest.raises(MismatchError):
        writer.declare(replace(MODEL, identity={**MODEL.identity, "files": "ff"}))


@pytest.mark.parametrize("line", range(6))
def test_lines_of_other_values_are_refused(tmp_path, line):
    path = tmp_path / "t.jsonl"
    write(path)
    lines = list(iterate(path))
    for name in lines[line]:
        for wrong in ([5], "x", {"x": "AA=="}, -1, "AAAAAA=="):
            changed = [*lines]
            changed[line] = lines[line] | {name: wrong}
            path.write_bytes(b"".join(map(encode_record, range(9), changed)))
            try:
                read_traces([path])
            except (DataError, MismatchError):
                continue
            assert type(wrong) is type(lines[line][name]), name  # no check of strings and counts


def test_damage_and_strangers_are_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    write(path)
    path.write_bytes(path.read_bytes().replace(b"length", b"Length"))  # not its checksum
    with pytest.raises(DataError):
        read_traces([path])
    path.write_bytes(encode_record(0, {"cell": "x"}))
    with pytest.raises(DataError):
        trace_files([path])
    path.write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for place in (path, tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(MissingError):
            read_traces([place])
