"""Access to a model hub: whether it is reachable, and downloads to the local cache.

Only needed files are fetched, after a check of the free disk. huggingface_hub reads its environment
when it is imported, so it is imported only after online or offline is decided.
"""

import errno
import logging
import os
import shutil
import sys
import threading
import urllib.parse
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from spsbench.checkpoints.config import read_object
from spsbench.checkpoints.weights import HEADS, INDEX, INDEX_LIMIT, PICKLE_INDEX, head_files
from spsbench.errors import (
    DataError,
    MissingError,
    OutOfMemoryError,
    PermissionDeniedError,
    SpsError,
    UnavailableError,
    did_you_mean,
    first_line,
)
from spsbench.hardware.files import in_words
from spsbench.settings.execution import Access
from spsbench.settings.models import BUNDLED, FETCHED, ModelSpec

log = logging.getLogger(__name__)
_silent: set[str] = set()  # hubs that did not answer this process when it last asked
_before: dict[str, str | None] = {}  # variables that this process has set -> what they were

_TEXTS = """
config.json generation_config.json tokenizer* special_tokens_map.json added_tokens.json
chat_template.j* vocab* merges.txt *.model *.tiktoken
"""

_SPARE = 1.05  # free disk wanted for each byte to come
_TIMEOUT = 10.0  # seconds for one answer of a hub that answered the probe


def fetch_snapshot(ref: ModelSpec, access: Access) -> Path:
    """Return the local snapshot folder of a hub id; missing files are downloaded unless offline.

    If the hub does not answer, what is cached is taken, and the libraries are set offline.
    Telemetry is switched off. SpsError: nothing whole is cached, or a failed download.
    """
    quiet_libraries()
    offline = access.offline or why_offline("HF_HUB_OFFLINE") is not None
    if offline or not reachable():
        go_offline()
        return _cached_snapshot(ref, access, offline)
    try:
        return _download(ref, access)
    except SpsError:
        raise
    except Exception as error:  # the libraries below raise kinds of five packages
        raise _translate_error(error, ref) from error


def _cached_snapshot(ref: ModelSpec, access: Access, offline: bool) -> Path:
    """Return the cached folder of `ref`, and log that the hub is not reached unless `offline`.

    UnavailableError: not cached, or only in part. DataError: only pickles, which are not allowed.
    """
    from huggingface_hub import try_to_load_from_cache

    config_path = try_to_load_from_cache(ref.id, "config.json", revision=ref.revision)
    unreached = not access.offline and (not offline or hub_address() in _silent)
    why = f"the hub cannot be reached ({hub_address()})" if unreached else "offline mode is on"
    named = ref.id if ref.revision is None else f"{ref.id} at {ref.revision}"
    what = "is not cached"
    if isinstance(config_path, str):
        folder = Path(config_path).parent
        try:
            head_files(folder, allow_pickle=access.allow_pickle)
        except (MissingError, DataError) as error:
            if "pickled" in str(error):
                raise
            what = "is only half downloaded"
        else:
            if not offline:
                log.info(f"{why}: using the cached {named}")
            return folder
    raise UnavailableError(
        f"{named} {what} and {why}: expected a cached model, a local folder or network. "
        f"Pass a local folder to `target`, or run again online{short_name_like(ref.id)}"
    )


def cached_file(repository: str, file: str, revision: str | None = None) -> Path | None:
    """Return the path of a data set's `file` in the hub's cache; None: it is not there."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, file, repo_type="dataset", revision=revision)
    return Path(path) if isinstance(path, str) else None


def fetch_file(repository: str, file: str, revision: str | None = None) -> Path:
    """Return the path of a data set's file, from the hub's cache or else from the hub.

    UnavailableError: not cached, and offline or unreachable. SpsError: a failed download.
    """
    from huggingface_hub import hf_hub_download

    if (path := cached_file(repository, file, revision)) is not None:
        return path
    why = why_offline("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    if why or not reachable():
        raise UnavailableError(
            f"{repository} is not cached and {why or 'the hub cannot be reached'}: expected "
            f"{file}. Name a file with `data` PATH, or run once with network"
        )
    try:
        return Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision))
    except Exception as error:
        raise _translate_error(error, ModelSpec(repository, revision=revision)) from error


def hub_address() -> str:
    """Return the address of the hub without any user name or password in it."""
    address = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def reachable(timeout: float = 3.0) -> bool:
    """Return whether the hub answers within `timeout` seconds, be it with an error.

    Each call asks anew, and keeps a hub's silence for messages. False: neither http nor https.
    """
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen  # slow: only where a hub is asked

    address = hub_address()  # urllib knows no user names in addresses, and 401 is an answer too
    if not address.startswith(("http://", "https://")):
        return False
    answered = threading.Event()

    def ask() -> None:
        """Send a request; set `answered`, if only by an error page or an unknown certificate."""
        request = Request(address + "/api/models?limit=1", method="HEAD")
        try:
            urlopen(request, timeout=timeout).close()
        except HTTPError as error:
            error.close()
        except (OSError, ValueError) as error:
            # The hub's own client knows other certificate stores: it may succeed where we did not.
            if "CERTIFICATE_VERIFY_FAILED" not in str(error):
                return
        answered.set()

    # A name server that never answers ignores socket timeouts, hence a thread that may be left.
    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    asker.join(timeout)
    if answered.is_set():
        _silent.discard(address)
    else:
        _silent.add(address)
    return answered.is_set()


def why_offline(*names: str) -> str | None:
    """Return why this process is offline: one of the variables `names`, or by itself; else None."""
    if switches := [name for name in names if name not in _before and _is_on(name)]:
        return f"{switches[0]} is set"
    if not _before:
        return None
    return "the hub cannot be reached" if hub_address() in _silent else "offline mode is on"


def set_here() -> dict[str, str | None]:
    """Return the variables that this process has set by itself, with the user's values."""
    return dict(_before)


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")


def quiet_libraries() -> None:
    """Turn telemetry off, and progress bars unless stderr is a terminal, where no variable says."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def go_offline() -> None:
    """Keep the hub's libraries from the network by variables, if these are not read already."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if "huggingface_hub.constants" not in sys.modules and not _is_on(name):
            _before[name] = os.environ.get(name)
            os.environ[name] = "1"


def cache_folder() -> Path:
    """Return the folder of the hub's cached files."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _download(ref: ModelSpec, access: Access) -> Path:
    """Download what the snapshot of `ref` lacks, log how much, and return its folder.

    DataError: no config.json, or no weights that may be read. OutOfMemoryError: not enough disk.
    PermissionDeniedError: no cache. Other errors are the libraries'.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    api, address = HfApi(), hub_address()
    # The name of the revision is kept with the files, for the next time without a network.
    commit = api.resolve_revision(ref.id, revision=ref.revision).resolved
    info = api.model_info(ref.id, revision=commit, files_metadata=True, timeout=_TIMEOUT)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}

    def get(name: str) -> Path:
        return Path(hf_hub_download(ref.id, name, revision=commit))

    if "config.json" not in sizes:
        raise DataError(
            f"{ref.id} has no config.json ({address}): expected a model for transformers. "
            "Choose its transformers version"
        )
    file_names = [name for name in sizes if any(fnmatch(name, x) for x in _TEXTS.split())]
    file_names += [name for name in sizes if ref.trust_remote_code and name.endswith(".py")]
    file_names = [name for name in file_names if "/" not in name]
    file_names += _weights(ref, address, sizes, access, get)
    missing = [
        name
        for name in file_names
        if not isinstance(try_to_load_from_cache(ref.id, name, revision=commit), str)
    ]
    size, cache = sum(sizes[name] for name in missing), cache_folder()
    if missing:
        log.info(f"downloading {ref.id}: {in_words(size)} to {cache}")
        check_disk(f"{ref.id} has", size, cache, "HF_HOME")
    for name in file_names:
        get(name)
    return get("config.json").parent


def _weights(
    ref: ModelSpec, address: str, sizes: dict[str, int], access: Access, get: Callable[[str], Path]
) -> list[str]:
    """Return the names of the weight files to fetch, after their index, which is fetched here.

    The first of: shards, one file, a head's; with `allow_pickle` then pickles. DataError: none.
    `sizes`: file of the repository -> bytes; `get` downloads one; `address` is for the message.
    """
    head, pickled_head = HEADS
    families: list[tuple[str | None, str]] = [(INDEX, "model.safetensors"), (None, head)]
    if access.allow_pickle:
        families += [(PICKLE_INDEX, "pytorch_model.bin"), (None, pickled_head)]
    for index, single in families:
        if index is not None and index in sizes:
            shards = read_object(get(index), INDEX_LIMIT).get("weight_map")
            names = set(shards.values()) if isinstance(shards, dict) else set()
            return [index, *sorted(names & set(sizes))]
        if single in sizes:
            return [single]
    raise DataError(
        f"{ref.id} has no safetensors ({address}): expected safetensors only, as a pickle can "
        "run code. Choose a revision that has them, or trust its author with `allow_pickle`"
    )


def check_disk(what: str, size: int, cache: Path, variable: str) -> None:
    """Make the folder `cache`, and check that its disk has `size` bytes, and 5 % of them, free.

    A message begins with `what`, as `gpt2 has`, and names the `variable` for another folder.
    PermissionDeniedError: the folder cannot be made. OutOfMemoryError: less is free.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
    except OSError as error:
        raise PermissionDeniedError(
            f"the model cache cannot be written ({cache}): {error.strerror}. "
            f"Set {variable} to a folder of yours"
        ) from error
    if free < size * _SPARE:
        raise OutOfMemoryError(
            f"{what} {in_words(size)} ({cache}): expected that and 5 % free on the disk, there "
            f"are {in_words(free)}. Free some, or set {variable} to another disk"
        )


def _translate_error(error: Exception, ref: ModelSpec) -> SpsError:
    """Return the SpsError for an error of the hub's libraries: what it was, and what to do.

    MissingError: no such one. PermissionDeniedError, OutOfMemoryError: disk. Else UnavailableError.
    """
    from huggingface_hub import errors

    address = hub_address()
    named = ref.id if ref.revision is None else f"{ref.id} at {ref.revision}"
    if isinstance(error, errors.GatedRepoError):
        return UnavailableError(
            f"{named} is gated ({address}): expected an account that was granted access. "
            "Ask for it on the model's page, then set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return MissingError(
            f"{ref.id} has no revision {ref.revision!r} ({address}): expected a branch, tag or "
            "commit. Check `revision`"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return MissingError(
            f"no model {ref.id!r} ({address}): expected a public hub id, or HF_TOKEN for a "
            "private one. Check the spelling, or pass a local folder to `target`"
            f"{short_name_like(ref.id)}"
        )
    if isinstance(error, PermissionError):
        return PermissionDeniedError(
            f"the model cache cannot be written ({error.filename}): {error.strerror}. "
            "Set HF_HOME to a folder of yours"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemoryError(
            f"the disk is full while {named} was downloaded: expected free space. "
            "Free some, or set HF_HOME to another disk"
        )
    return UnavailableError(
        f"{named} could not be downloaded ({address}): {first_line(error)}. Run again; what has "
        "arrived is kept"
    )


def short_name_like(name: str) -> str:
    """Return `. Did you mean nano?` for a hub id without an owner; empty: it is like no model."""
    meant = "" if "/" in name else did_you_mean(name, (*BUNDLED, *FETCHED))
    return f".{meant}" if meant else ""
