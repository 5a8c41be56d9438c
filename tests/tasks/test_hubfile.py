"""XSum's file: out of the cache, checked, and a clear word where it cannot be had."""

import hashlib

import huggingface_hub
import pytest
from huggingface_hub import constants

from spsbench.errors import DataError, PermissionDeniedError, UnavailableError
from spsbench.tasks import articles

CONTENT = b"a parquet"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, where the file that is wanted has CONTENT."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(articles, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(articles, "_reachable", lambda: False)
    for switch in articles._SWITCHES:
        monkeypatch.delenv(switch, raising=False)
    return tmp_path


def put(cache, content):
    """Leave the file as the hub's client does."""
    snapshot = cache / "datasets--EdinburghNLP--xsum" / "snapshots" / articles.REVISION
    path = snapshot / articles.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_cached_file_needs_no_network(cache):
    path = put(cache, CONTENT)
    assert articles.cached() == articles.fetch() == path


def test_another_file_than_the_pinned_one_is_refused(cache):
    path = put(cache, b"another parquet")
    with pytest.raises(DataError, match="another checksum") as caught:
        articles.fetch()
    assert str(path) in str(caught.value)
    assert articles.SHA256 in str(caught.value)


@pytest.mark.parametrize("switch", articles._SWITCHES)
def test_offline_is_said_without_asking(cache, switch, monkeypatch):
    monkeypatch.setenv(switch, "1")
    monkeypatch.setattr(articles, "_reachable", lambda: pytest.fail("asked"))
    with pytest.raises(UnavailableError, match=f"{switch} is set"):
        articles.fetch()


def test_out_of_reach_is_said_without_a_download(cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("tried"))
    with pytest.raises(UnavailableError, match=r"cannot be reached.*data=mini"):
        articles.fetch()


def test_within_reach_it_is_downloaded(cache, monkeypatch):
    asked = []

    def download(*given, **named):
        asked.append((*given, named))
        return str(put(cache, CONTENT))

    monkeypatch.setattr(articles, "_reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert articles.fetch().read_bytes() == CONTENT
    where = {"repo_type": "dataset", "revision": articles.REVISION}
    assert asked == [("EdinburghNLP/xsum", articles.FILE, where)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("reset\nby peer"), UnavailableError),
        (RuntimeError(), UnavailableError),
        (PermissionError(13, "denied", "/cache"), PermissionDeniedError),
    ],
)
def test_a_broken_download_is_one_line(cache, error, kind, monkeypatch):
    def download(*given, **named):
        raise error

    monkeypatch.setattr(articles, "_reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(kind) as caught:
        articles.fetch()
    assert "\n" not in str(caught.value)
