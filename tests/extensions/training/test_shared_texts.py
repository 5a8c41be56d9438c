"""Texts of a training by workers: the file that one process writes, byte for byte."""

import pytest

from spsbench.errors import UsageError
from spsbench.extensions.training.generation import Writer
from spsbench.extensions.training.library import train
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.prompts import Overlap, prompts_of
from spsbench.extensions.training.shared_texts import TextWorkers
from spsbench.extensions.training.texts import write_texts
from spsbench.settings.execution import Access, Workers
from spsbench.settings.models import ModelSpec
from spsbench.workers.map_units import BrokenOffError
from tests.folders import byte_tokenizer, random_model, save
from tests.workers.inline import first, inline

MADE = {"target": "tiny", "tokenizer": "a", "vocab": 290}
ASKED = HeadTraining(count=100, tokens=4, prompt_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models") / "t", random_model(), byte_tokenizer())


@pytest.fixture(scope="module")
def model():
    return random_model()


def never():
    return False


def writer(model, asked):
    tokenizer = byte_tokenizer()
    return Writer(
        model,
        tokenizer,
        frozenset({0}),
        len(tokenizer),
        asked,
        False,
        prompts_of(asked, tokenizer, False, Overlap(())),
    )


def pool(folder, asked):
    target = ModelSpec(str(folder), dtype="float32")
    return TextWorkers(Workers(on="processes:2"), target, asked, Access(offline=True))


@pytest.mark.parametrize("prompts", [False, True])
def test_the_same_file_whoever_writes(prompts, folder, model, tmp_path, monkeypatch, said):
    """Prompts are read by the driver alone: the file is not there for workers."""
    asked = ASKED
    if prompts:
        path = tmp_path / "prompts.txt"
        path.write_text("\n\n".join(f"the cat number {n}" for n in range(70)))
        asked = HeadTraining(count=100, tokens=4, prompt_tokens=40, prompts=(str(path),))
    made = writer(model, asked)
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert write_texts(here, MADE, made, never)
    if prompts:
        path.unlink()
    pools = inline(monkeypatch, first(2))
    assert write_texts(there, MADE, made, never, pool(folder, asked))
    assert there.read_bytes() == here.read_bytes()
    assert sum("is lost (SIGKILL)" in line for line in said) == 2
    assert len(pools) == 1
    assert write_texts(there, MADE, made, never, pool(folder, asked))
    assert len(pools) == 1, "nobody is asked for what is there"


def test_stopped_and_gone_on_with(folder, model, tmp_path, monkeypatch):
    inline(monkeypatch)
    made = writer(model, ASKED)
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    write_texts(here, MADE, made, never)
    partial = there.with_suffix(".partial")

    def begun():
        return partial.read_bytes().count(b"\n") > 2  # the head and two batches

    own = pool(folder, ASKED)
    assert not write_texts(there, MADE, made, begun, own)
    partial.write_bytes(partial.read_bytes() + b'{"batch": 9, "te')  # torn by a kill
    assert write_texts(there, MADE, made, never)
    assert there.read_bytes() == here.read_bytes()


def test_a_batch_that_cannot_be_written_is_said_and_the_others_are(
    folder, model, tmp_path, monkeypatch, said
):
    inline(monkeypatch)
    batch = Writer.batch

    def spoilt(self, index, given=None):
        if index == 1:
            raise ValueError("spoilt")
        return batch(self, index, given)

    monkeypatch.setattr(Writer, "batch", spoilt)
    path = tmp_path / "texts.jsonl"
    made = writer(model, ASKED)
    with pytest.raises(BrokenOffError, match="1 batches of texts"):
        write_texts(path, MADE, made, never, pool(folder, ASKED))
    assert any("gave up batch 1 of the texts: ValueError: spoilt" in line for line in said)
    assert path.with_suffix(".partial").read_bytes().count(b"\n") == 4  # of 4 batches 3


def test_a_cluster_for_texts_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("spsbench.settings.execution.find_spec", lambda name: name)
    with pytest.raises(UsageError, match="`on` ray:a:1 with a training: expected processes:N"):
        train("draft", on="ray:a:1", out=tmp_path / "out")


def test_workers_for_texts_that_are_there_are_refused(tmp_path):
    with pytest.raises(UsageError, match="`texts` with `on`"):
        train("draft", texts=tmp_path / "texts.jsonl", on="processes:2", out=tmp_path / "out")
