"""XSum's file: out of the cache, checked, and a clear word where it cannot be had."""

import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spsbench.errors import DataError, PermissionDeniedError, UnavailableError
from spsbench.tasks import articles, reader
from spsbench.tasks.xsum import XSum
from tests.oracles.stub import Stub, serving

CONTENT = b"a parquet"
SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass
class Hub:
    """As much of `huggingface_hub` as is asked: a file that is cached, or comes by a download."""

    cached: Path | None = None
    file: Path | None = None
    error: Exception | None = None
    asked: list[Any] = field(default_factory=list)

    def try_to_load_from_cache(self, *given: str, **named: str) -> str | None:
        return self.cached and str(self.cached)

    def hf_hub_download(self, *given: str, **named: str) -> str:
        self.asked.append((*given, named))
        if self.error is not None:
            raise self.error
        return str(self.file)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub out of reach, whose file has the content that is pinned."""
    found = Hub(file=tmp_path / "file")
    found.file.write_bytes(CONTENT)
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    monkeypatch.setattr(articles, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for switch in SWITCHES:
        monkeypatch.delenv(switch, raising=False)
    return found


@pytest.fixture
def within_reach(monkeypatch):
    with serving(Stub()) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield


def fetch():
    return reader.hub_file(articles.REPOSITORY, articles.FILE, articles.REVISION, articles.SHA256)


def test_a_cached_file_needs_no_network(hub):
    hub.cached = hub.file
    assert articles.cached() == fetch() == hub.file
    assert hub.asked == []


def test_another_file_than_the_pinned_one_is_refused(hub):
    hub.cached = hub.file
    hub.file.write_bytes(b"another parquet")
    with pytest.raises(DataError) as caught:
        fetch()
    assert str(hub.file) in str(caught.value)
    assert articles.SHA256 in str(caught.value)


@pytest.mark.parametrize("switch", SWITCHES)
def test_offline_is_said_without_asking(hub, within_reach, switch, monkeypatch):
    monkeypatch.setenv(switch, "1")
    with pytest.raises(UnavailableError):
        fetch()
    assert hub.asked == []


def test_within_reach_it_is_downloaded(hub, within_reach):
    assert fetch().read_bytes() == CONTENT
    where = {"repo_type": "dataset", "revision": articles.REVISION}
    assert hub.asked == [("EdinburghNLP/xsum", articles.FILE, where)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("reset\nby peer"), UnavailableError),
        (RuntimeError(), UnavailableError),
        (PermissionError(13, "denied", "/cache"), PermissionDeniedError),
    ],
)
def test_a_broken_download_is_one_line(hub, within_reach, error, kind):
    hub.error = error
    with pytest.raises(kind) as caught:
        fetch()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", ["auto", "hub"])
def test_the_split_of_the_hub_says_what_it_is(data, hub, monkeypatch):
    rows = (f'{{"id": "{n}", "document": "One.", "summary": "It."}}\n' for n in range(2))
    hub.file.write_text("".join(rows))
    hub.cached = hub.file
    monkeypatch.setattr(articles, "SHA256", hashlib.sha256(hub.file.read_bytes()).hexdigest())
    task = XSum(data)
    assert task.title.startswith("XSum test split, 2 articles (EdinburghNLP/xsum at 7d4d486c")
    assert "11,305" in task.title


def test_auto_takes_mini_where_the_hub_is_out_of_reach(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    task = XSum(count=5)
    assert "not XSum" in task.title
    assert "HF_HUB_OFFLINE is set" in task.title
    assert len(list(task.samples(lambda prompt: True))) == 5
