"""XSum's test split: one parquet file of a hub, pinned by commit and by checksum, in its cache."""

import hashlib
from pathlib import Path

from spsbench.errors import DataError, PermissionDeniedError, UnavailableError, first_line

REPOSITORY = "EdinburghNLP/xsum"
REVISION = "7d4d486c2f8ef850b1a11aead99b894ff3dd7da9"
FILE = "data/test-00000-of-00001.parquet"
SHA256 = "224e9dbc6fed987759c1954603b43cb280b8d475d78893779130aa707d967ed7"
_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_WAY_OUT = "Take data=mini, name a file with data=PATH, or run once with network"


def fetch() -> Path:
    """The file, from the cache or else from the hub; never minutes of retries against silence.

    Raises:
        UnavailableError: not cached, and offline, out of reach, or the download broke off.
        DataError: the file has another checksum than it had when it was pinned.
        PermissionDeniedError: the cache may not be written.
    """
    path = cached()
    if path is None:
        if (why := out_of_reach()) is not None:
            raise UnavailableError(
                f"{REPOSITORY} is not cached and {why}: expected the test split. {_WAY_OUT}"
            )
        path = _download()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise DataError(
            f"XSum's test split has another checksum ({path}, sha256 {found}): expected {SHA256}. "
            "Delete the file to fetch it again; if that does not help, it was changed at the hub"
        )
    return path


def cached() -> Path | None:
    """The file, if it is in the cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(REPOSITORY, FILE, repo_type="dataset", revision=REVISION)
    return Path(found) if isinstance(found, str) else None


def out_of_reach() -> str | None:
    """Why nothing can be downloaded now, or None; asking takes three seconds at most."""
    from spsbench.models.hub import why_offline

    if (why := why_offline(*_SWITCHES)) is not None:
        return why
    return None if _reachable() else "the hub cannot be reached"


def _reachable() -> bool:
    from spsbench.models.hub import reachable

    return reachable()


def _download() -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(REPOSITORY, FILE, repo_type="dataset", revision=REVISION))
    except PermissionError as error:
        raise PermissionDeniedError(
            f"the hub's cache cannot be written ({error.filename}): expected a folder of yours. "
            "Set HF_HOME to one"
        ) from error
    except Exception as error:  # the client raises kinds of several packages
        raise UnavailableError(
            f"{REPOSITORY} could not be downloaded ({first_line(error)}): expected the test "
            f"split. {_WAY_OUT}"
        ) from error
