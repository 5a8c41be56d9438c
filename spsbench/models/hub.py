"""A model hub: reached or not, and a model's files brought into the local cache.

huggingface_hub reads its environment when it is imported, so it is imported only after the decision
between online and offline.
"""

import logging
import os
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from spsbench.errors import DataError, MissingError, SpsError, UnavailableError
from spsbench.models.download import download
from spsbench.models.weights import head_files
from spsbench.settings.models import ModelSpec

log = logging.getLogger(__name__)

_silent: set[str] = set()  # hubs that did not answer this process when it last asked
_before: dict[str, str | None] = {}  # variables that this process has set -> what they were


def endpoint() -> str:
    """The address of the hub as it may be shown: without a name or password in it."""
    parts = urllib.parse.urlsplit(_address())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _address() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def reachable(timeout: float = 3.0) -> bool:
    """Does the hub answer within `timeout` seconds? Any answer counts, an error page too."""
    address = _address()
    if not address.startswith(("http://", "https://")):
        return False
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(address + "/api/models?limit=1", method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=timeout).close()
        except urllib.error.HTTPError as error:
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


def offline_switch(*names: str) -> str | None:
    """The first of the variables `names` that the user has on, as huggingface_hub reads them."""
    return next((name for name in names if name not in _before and _is_on(name)), None)


def why_offline(*names: str) -> str | None:
    """Why this process stays offline: one of the variables `names`, or what it found; else None."""
    if (switch := offline_switch(*names)) is not None:
        return f"{switch} is set"
    if not _before:
        return None
    return "the hub cannot be reached" if _address() in _silent else "offline mode is on"


def set_here() -> dict[str, str | None]:
    """The variables that this process has set by itself, and what the user had them at."""
    return dict(_before)


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")


def quieten() -> None:
    """Turn telemetry off, and progress bars too unless a person watches standard error."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def imported() -> bool:
    """Whether the libraries have read their environment variables already."""
    return "huggingface_hub.constants" in sys.modules


def go_offline() -> None:
    """Keep the Hugging Face libraries from the network; call it before they are imported.

    Raises:
        SpsError: huggingface_hub is imported already and is not offline.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if not _is_on(name):
            _before[name] = os.environ.get(name)
            os.environ[name] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None and not constants.HF_HUB_OFFLINE:
        raise SpsError(
            "huggingface_hub was imported before offline mode was set: expected the other order. "
            "Set HF_HUB_OFFLINE=1 before starting"
        )


def fetch(
    ref: ModelSpec,
    *,
    offline: bool,
    allow_pickle: bool,
    trust_remote_code: bool = False,
) -> Path:
    """The local snapshot folder of a hub id; what is missing is downloaded unless `offline`.

    Raises:
        MissingError: no such model or revision.
        UnavailableError: not cached, and the hub is out of reach, refuses, or breaks off.
        OutOfMemoryError: the disk cannot hold it.
        PermissionDeniedError: the cache may not be written.
        DataError: only pickled weights, without `allow_pickle`.
    """
    quieten()
    offline = offline or why_offline("HF_HUB_OFFLINE") is not None
    online = not offline and reachable()
    if not online:
        if "huggingface_hub" not in sys.modules:
            go_offline()
        return _cached(ref, allow_pickle=allow_pickle, offline=offline)
    return download(
        ref,
        address=endpoint(),
        allow_pickle=allow_pickle,
        code=trust_remote_code,
    )


def _cached(ref: ModelSpec, *, allow_pickle: bool, offline: bool) -> Path:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(ref.id, "config.json", revision=ref.revision)
    unreached = not offline or _address() in _silent
    why = f"the hub cannot be reached ({endpoint()})" if unreached else "offline mode is on"
    named = ref.id if ref.revision is None else f"{ref.id} at {ref.revision}"
    what = "is not cached"
    if isinstance(found, str):
        folder = Path(found).parent
        try:
            head_files(folder, allow_pickle=allow_pickle)
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
        "Pass a local folder to --target, or run again online"
    )
