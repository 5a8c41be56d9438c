"""A model's files from a hub into the local cache: only those needed, after a look at the disk."""

import errno
import logging
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from spsbench.errors import (
    DataError,
    MissingError,
    OutOfMemoryError,
    PermissionDeniedError,
    SpsError,
    UnavailableError,
    first_line,
)
from spsbench.hardware.sizes import in_words
from spsbench.models.jsonfile import read_object
from spsbench.models.weights import HEADS, INDEX, INDEX_LIMIT, PICKLE_INDEX
from spsbench.settings.models import ModelSpec

log = logging.getLogger(__name__)

_TEXTS = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.j*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)
_SPARE = 1.05  # free disk wanted for each byte to come
_TIMEOUT = 10.0  # seconds for one answer of a hub that answered the probe


def cache_folder() -> Path:
    """Where the hub's files are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def download(ref: ModelSpec, *, address: str, allow_pickle: bool, code: bool) -> Path:
    """The snapshot folder of `ref`, after what it lacks was downloaded.

    Args:
        ref: a hub id.
        address: of the hub, for messages.
        allow_pickle: take pickled weights where there are no safetensors.
        code: take Python files too.

    Raises:
        MissingError, UnavailableError, OutOfMemoryError, PermissionDeniedError, DataError: as
            `hub.fetch`.
    """
    try:
        return _download(ref, address, allow_pickle, code)
    except SpsError:
        raise
    except Exception as error:  # the libraries below raise kinds of five packages
        raise _translated(error, ref, address) from error


def _download(ref: ModelSpec, address: str, allow_pickle: bool, code: bool) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    api = HfApi()
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
    wanted = [name for name in sizes if any(fnmatch(name, pattern) for pattern in _TEXTS)]
    wanted += [name for name in sizes if code and name.endswith(".py")]
    wanted = [name for name in wanted if "/" not in name]
    wanted += _weights(ref, address, sizes, allow_pickle, get)
    missing = [
        name
        for name in wanted
        if not isinstance(try_to_load_from_cache(ref.id, name, revision=commit), str)
    ]
    size, cache = sum(sizes[name] for name in missing), cache_folder()
    if missing:
        log.info(f"downloading {ref.id}: {in_words(size)} to {cache}")
        _check_disk(ref, size, cache)
    for name in wanted:
        get(name)
    return get("config.json").parent


def _weights(
    ref: ModelSpec,
    address: str,
    sizes: dict[str, int],
    allow_pickle: bool,
    get: Callable[[str], Path],
) -> list[str]:
    """The names of the weight files, and of their index: of a model, or of a drafter's head."""
    head, pickled_head = HEADS
    families: list[tuple[str | None, str]] = [(INDEX, "model.safetensors"), (None, head)]
    if allow_pickle:
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
        "run code. Choose a revision that has them, or trust its author with --allow-pickle"
    )


def _check_disk(ref: ModelSpec, size: int, cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
    except OSError as error:
        raise PermissionDeniedError(
            f"the model cache cannot be written ({cache}): {error.strerror}. "
            "Set HF_HOME to a folder of yours"
        ) from error
    if free < size * _SPARE:
        raise OutOfMemoryError(
            f"{ref.id} has {in_words(size)} ({cache}): expected that and 5 % free on the disk, "
            f"there are {in_words(free)}. Free some, or set HF_HOME to another disk"
        )


def _translated(error: Exception, ref: ModelSpec, address: str) -> SpsError:
    from huggingface_hub import errors

    named = ref.id if ref.revision is None else f"{ref.id} at {ref.revision}"
    if isinstance(error, errors.GatedRepoError):
        return UnavailableError(
            f"{named} is gated ({address}): expected an account that was granted access. "
            "Ask for it on the model's page, then set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return MissingError(
            f"{ref.id} has no revision {ref.revision!r} ({address}): expected a branch, tag or "
            "commit. Check --revision"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return MissingError(
            f"no model {ref.id!r} ({address}): expected a public hub id, or HF_TOKEN for a "
            "private one. Check the spelling, or pass a local folder to --target"
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
