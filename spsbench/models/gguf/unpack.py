"""Unpacking of a GGUF file to a folder of safetensors, dequantised once by transformers."""

import hashlib
import io
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from glob import escape
from pathlib import Path
from typing import Any

from spsbench.checkpoints.config import read_object
from spsbench.errors import DataError
from spsbench.hardware.files import cache_home, in_words
from spsbench.models.gguf.header import KEPT, Header, read_header
from spsbench.models.hub import check_disk

log = logging.getLogger(__name__)

RULE = 3  # changes whenever a file is unpacked to other numbers
ORIGIN = "gguf.json"  # next to the weights: where they come from
PAUSE = 5.0  # seconds between lines of progress
_HEAD = 16 << 20  # bytes
_BYTES = 4  # bytes of a weight: float32 holds what any packing means, not rounded again


def unpacked_folder(file: Path) -> Path:
    """Return the folder in the cache that `file` is unpacked to, unpacking it the first time.

    A file of another path, size or time is another one. SpsError: as `write_unpacked`.
    """
    status = file.resolve().stat()
    mark = f"{RULE}/{file.resolve()}/{status.st_size}/{status.st_mtime_ns}"
    digest = hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    folder = cache_home() / "gguf" / f"{file.stem}-{digest}"
    if not is_unpacked(folder):
        write_unpacked(file, folder)
    return folder


def is_unpacked(folder: Path) -> bool:
    """Return whether `write_unpacked` made `folder`, with the blocks that older versions lack."""
    return all((folder / name).is_file() for name in (ORIGIN, KEPT))


def write_unpacked(file: Path, folder: Path, *, more: Mapping[str, str] | None = None) -> None:
    """Write the model in `file` as float32 safetensors, with its blocks, into `folder`, or nothing.

    What `folder` has is replaced, and what killed processes left is removed; notes tell of
    progress. `more`: other files of the folder, name -> text; None: a model card. DataError: a file
    that is not read in full. OutOfMemoryError: no room. PermissionDeniedError: no right to write.
    """
    head = read_header(file)
    size = head.numbers * _BYTES
    check_disk(f"{file.name} unpacks to", size, folder.parent, "XDG_CACHE_HOME")
    log.info(f"unpacking {file.name} ({head.packing}): {in_words(size)} to {folder}")
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    for left in folder.parent.glob(f".{escape(folder.name)}.*"):
        if left == part or not is_running(left.suffix[1:]):
            shutil.rmtree(left, ignore_errors=True)
    part.mkdir()
    try:
        with _terminable():
            _write(file, head, part)
        for name, text in (more or {"README.md": _card(file, head)}).items():
            (part / name).write_text(text)
        origin_record = {"file": file.name, "packing": head.packing, "bytes": file.stat().st_size}
        (part / ORIGIN).write_text(json.dumps(origin_record, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_running(pid: str) -> bool:
    """Return whether a process here, any user's, has the number in `pid`; False: no number."""
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in the block where it would kill, so that files are removed.

    In another thread than the main one, or with a handler of others, it does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _ProgressLines(io.StringIO):
    """A stream for transformers' progress bar that logs its percentage every `PAUSE` seconds."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._last = name, time.monotonic()

    def write(self, text: str) -> int:
        share = re.search(r"(?<!\d)(\d++)%", text)
        if share is not None and time.monotonic() > self._last + PAUSE:
            self._last = time.monotonic()
            log.info(f"unpacking {self._name}: {share[1]} %")
        return len(text)


def original_format(folder: str | Path) -> str | None:
    """Return packing and name of the GGUF file that `folder` was unpacked from; None: from none."""
    if not (path := Path(folder) / ORIGIN).is_file():
        return None
    origin_record = read_object(path, 1 << 16)
    return f"{origin_record.get('packing')} ({origin_record.get('file')})"


def blocks_in_words(folder: str | Path) -> str | None:
    """Return `layers Q8_0 210, Q4_0 2`: how many layers `folder` has as blocks; None: no such file.

    "layers none" for a file without any, "damaged" for one that cannot be read. The header is read
    here, since safetensors loads numpy, and lists of models must not.
    """
    if not (path := Path(folder) / KEPT).is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(min(int.from_bytes(file.read(8), "little"), _HEAD))
        kinds = json.loads(head).get("__metadata__") or {}
        counts = Counter(kinds.values()).most_common()
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):  # other JSON
        return "damaged"
    return "layers " + (", ".join(f"{kind} {count}" for kind, count in counts) or "none")


def _write(file: Path, head: Header, folder: Path) -> None:
    """Write model, tokenizer, generation config and blocks; DataError: not all can be read.

    Refused are an architecture, keys, tensors and rotary positions that transformers does not read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES as KNOWN

    from spsbench.checkpoints.config import check_config
    from spsbench.models.gguf.blocks import keep_blocks, tensors_named
    from spsbench.models.gguf.metadata import FACTORS, NAMES, check_rope, check_tensors, full_config
    from spsbench.models.gguf.tokenizer import generation_settings, keep_listed
    from spsbench.models.loader import check_complete
    from spsbench.models.third_party import silence, translate_errors

    names = {head.architecture, head.architecture.replace("-", "_"), NAMES.get(head.architecture)}
    if names.isdisjoint(KNOWN):
        raise DataError(
            f"{file.name} is of the architecture {head.architecture[:40]!r} ({file}): expected "
            f"one that transformers reads from GGUF: {', '.join(sorted(KNOWN))}"
        )
    # its progress bar knows no other switch
    with (
        translate_errors("the GGUF file", file),
        silence(),
        redirect_stderr(_ProgressLines(file.name)),
    ):
        where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        config = AutoConfig.from_pretrained(file.parent, **where)
        check_config(config.to_dict(), file, trust_remote_code=False)
        factors = tensors_named(file, FACTORS)
        config = full_config(config, head, factors, file)
        AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(folder)
        keep_listed(folder, head.values["tokenizer.ggml.tokens"])
        model, info = AutoModelForCausalLM.from_pretrained(
            file.parent,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_complete` names them
            **where,
        )
        check_complete(info, file)
        check_tensors(model, head, file)
        check_rope(model, head, factors, file)
        # transformers saves no model that it calls quantised, though these weights are plain
        values = model.config.to_dict()
        values.pop("quantization_config", None)
        with torch.device("meta"):
            plain = type(model)(type(config).from_dict(values))
        plain.load_state_dict(model.state_dict(), assign=True)
        plain.tie_weights()
        plain.config.name_or_path = ""
        plain.save_pretrained(folder)
        settings = json.dumps(generation_settings(head), indent=2) + "\n"
        (folder / "generation_config.json").write_text(settings)
        keep_blocks(file, plain, folder)


def _card(file: Path, head: Header) -> str:
    """Return the text of the model card: what made the folder, its packing and licence."""
    name = head.values.get("general.name", file.stem)
    licence = head.values.get("general.license", "not named in the file")
    return (
        f"# {name}\n\nMade by spsbench from `{file.name}`. The weights are the dequantised "
        f"{head.packing} in float32: not those of the model before it was quantised. `{KEPT}` has "
        "the blocks as they were.\n\n"
        f"Licence: {licence}.\n"
    )
