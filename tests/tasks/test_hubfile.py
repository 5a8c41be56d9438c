"""XSum's file: out of the cache, or by a download, and a clear word where it cannot be had."""

from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest

from spsbench.errors import MissingError, PermissionDeniedError, UnavailableError
from spsbench.models.hub import cached_file, fetch_file
from spsbench.tasks import articles
from spsbench.tasks.xsum import XSum
from tests.oracles.stub import Stub, serving

SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub out of reach: a file that is cached, or comes by a download, or an error."""
    file = tmp_path / "file"
    hub = SimpleNamespace(file=file, cached=None, error=None, asked=[])

    def download(*arguments, **options):
        hub.asked.append((*arguments, options))
        if hub.error is not None:
            raise hub.error
        return str(file)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: hub.cached)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for switch in SWITCHES:
        monkeypatch.delenv(switch, raising=False)
    return hub


@pytest.fixture
def within_reach(monkeypatch):
    with serving(Stub()) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield


def fetch():
    return fetch_file(*articles.SPLIT)


def test_a_file_is_downloaded_once(hub, within_reach):
    assert fetch() == hub.file
    where = {"repo_type": "dataset", "revision": articles.REVISION}
    assert hub.asked == [("EdinburghNLP/xsum", articles.FILE, where)]
    hub.cached = str(hub.file)
    assert cached_file(*articles.SPLIT) == fetch() == hub.file
    assert len(hub.asked) == 1


@pytest.mark.parametrize("switch", SWITCHES)
def test_offline_is_said_without_asking(hub, within_reach, switch, monkeypatch):
    monkeypatch.setenv(switch, "1")
    with pytest.raises(UnavailableError):
        fetch()
    assert hub.asked == []


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
def test_the_split_of_the_hub_says_what_it_is(data, hub):
    rows = (f'{{"id": "{n}", "document": "One.", "summary": "It."}}\n' for n in range(2))
    hub.file.write_text("".join(rows))
    hub.cached = str(hub.file)
    task = XSum(data)
    assert task.title.startswith("XSum test split, 2 articles (EdinburghNLP/xsum at 7d4d486c")
    assert "11,305" in task.title


def test_auto_takes_mini_where_the_hub_is_out_of_reach(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    task = XSum(count=5)
    assert "not XSum" in task.title
    assert "HF_HUB_OFFLINE is set" in task.title
    assert len(list(task.samples(lambda prompt: True))) == 5


def test_an_id_is_a_data_set_of_the_hub_unless_its_folder_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert XSum.online({"data": "owner/name"})
    with pytest.raises(UnavailableError):
        XSum("owner/name")
    (tmp_path / "owner").mkdir()
    assert not XSum.online({"data": "owner/name"})
    with pytest.raises(MissingError):
        XSum("owner/name")
