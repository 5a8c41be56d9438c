"""Logs of served requests: files, pipes and folders, read line by line, and their token ids.

Lines that hold no usable request are left out and counted by reason (`formats`).
"""

import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol

from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.hardware.files import open_file
from spsbench.planning.logs.formats import BATCH, FORMATS, LeftOutError, Request, of_type

LINE_BYTES = 64 << 20  # of a line; a longer one is left out
DOCUMENT_BYTES = 1 << 30  # of a file that is one JSON document


@dataclass(slots=True)
class LogReader:
    """The requests of some files, in the order of their lines.

    Args:
        paths: files, `-` for standard input, or pipes; gzip is told by its first bytes.
        prompts: prompts by id or by number, for logs that hold none.
        folders: reads a folder; None: folders are refused.

    Attributes:
        left_out: how many lines were left out, by reason.
        formats: names of the formats that were met.
    """

    paths: Sequence[Path]
    prompts: Mapping[str, str] = field(default_factory=dict)
    folders: Callable[[Path], Iterator["Request"]] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    total: int = 0  # bytes of all files; 0 where they are pipes
    done: int = 0  # bytes read so far
    _batch: dict[str, dict[str, Any]] = field(default_factory=dict)  # custom_id -> request's body

    def __post_init__(self) -> None:
        files = [path for path in self.paths if path.is_file()]
        whole = len(files) == len(self.paths)
        self.total = sum(path.stat().st_size for path in files) if whole else 0

    def __str__(self) -> str:
        return f"{100 * self.done / self.total:.0f} % of the log" if self.total else "the log"

    def __iter__(self) -> Iterator[Request]:
        before = 0
        for path in self.paths:
            if path.is_dir() and self.folders is not None:
                self.formats["run of sps bench"] += 1
                yield from self.folders(path)
                continue
            with open_log(path) as (file, raw):
                for number, entry in self._objects(file, path):
                    if self.total:
                        self.done = before + raw.tell()
                    yield from self._of(entry, number)
            before = self.done

    def _of(self, entry: object, number: int) -> Iterator[Request]:
        try:
            if not isinstance(entry, dict):
                raise LeftOutError("no JSON object")
            if "custom_id" in entry and "body" in entry:  # half of a pair of OpenAI batch files
                self._batch[str(entry["custom_id"])] = of_type(entry, "body", dict)
                return
            form = next((form for form in FORMATS if form.keys <= entry.keys()), None)
            if form is None:
                raise LeftOutError("no answer in a known field")
            if form.name == BATCH:
                entry = {**entry, "request": self._batch.pop(str(entry["custom_id"]), {})}
            self.formats[form.name] += 1
            for request in form.requests(entry, number):
                if request.prompt is None and self.prompts:
                    request = replace(request, prompt=self.prompts.get(request.id))
                yield request
        except LeftOutError as reason:
            self.left_out[str(reason)] += 1

    def _objects(self, file: IO[bytes], path: Path) -> Iterator[tuple[int, object]]:
        """Yield the objects of a file with their numbers: one a line, or those of one document."""
        first = file.readline(LINE_BYTES)
        begin = first.lstrip()[:1]
        if begin == b"[" or (begin == b"{" and first.strip() == b"{"):
            yield from enumerate(self._document(first, file, path))
            return
        number, line = 0, first
        while line:
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                self.left_out[f"a line above {LINE_BYTES >> 20} MiB"] += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES)
            elif line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError):
                    cut = "" if line.endswith(b"\n") else " (the last line, cut off)"
                    self.left_out[f"no JSON{cut}"] += 1
            number += 1
            line = file.readline(LINE_BYTES)

    def _document(self, first: bytes, file: IO[bytes], path: Path) -> Iterable[object]:
        text = first + file.read(DOCUMENT_BYTES - len(first) + 1)
        if len(text) > DOCUMENT_BYTES:
            raise DataError(
                f"a JSON document above {DOCUMENT_BYTES >> 30} GiB ({path}): expected one request "
                "a line, which is read bit by bit. Convert it, for instance with jq -c '.[]'"
            )
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"no JSON ({path}: {error}): expected a list of requests, or one a line"
            ) from error
        return document if isinstance(document, list) else [document]


@contextmanager
def open_log(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a log: a file, a pipe, or `-` for standard input; gzip is told by its first bytes.

    Yields the file to read, and the one whose position says how far it is read.

    Raises:
        MissingError, PermissionDeniedError, DataError: no file that can be read.
    """
    if str(path) == "-":
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    if path.is_dir():
        raise DataError(f"a folder ({path}): expected a log file, or the folder of a run")
    if not path.exists():
        raise MissingError(f"no file {path}: expected a log of served requests. Check the path")
    try:
        with open_file(path) as file:
            if file.peek(2)[:2] == b"\x1f\x8b":
                with gzip.open(file) as unpacked:
                    yield unpacked, file  # type: ignore[misc]
            else:
                yield file, file
    except PermissionError as error:
        raise PermissionDeniedError(f"cannot read {path}: expected a readable log") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"damaged gzip ({path}: {error}): expected a whole file") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Expected a file or pipe") from error


class Encoder(Protocol):
    """Text -> token ids."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


@dataclass(slots=True)
class Tokens:
    """Turns requests into ids, and compares the log's ids with a tokenizer's.

    Args:
        encoder: None where the log must hold ids.
        vocab_size: ids below it exist; None where that is unknown.

    Attributes:
        compared: requests whose ids and text were both there; `different`, how many disagreed.
    """

    encoder: Encoder | None = None
    vocab_size: int | None = None
    compared: int = 0
    different: int = 0

    def of(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the ids of prompt and answer.

        Raises:
            LeftOutError: there are none, or ids beyond the vocabulary.
        """
        if request.has_ids:
            prompt, answer = list(request.prompt or ()), list(request.answer)
            if self.encoder is not None and request.text is not None:
                self.compared += 1
                self.different += self.encoder.decode(answer) != request.text  # type: ignore[arg-type]
        elif self.encoder is None:
            raise LeftOutError("texts without token ids, and no tokenizer")
        else:
            prompt_text = request.prompt if isinstance(request.prompt, str) else ""
            prompt = list(self.encoder.encode(prompt_text))
            answer = list(self.encoder.encode(str(request.answer)))
        if not answer:
            raise LeftOutError("an empty answer")
        ids: list[Any] = [*prompt, *answer]
        if self.vocab_size is not None and max(ids) >= self.vocab_size:
            raise LeftOutError(f"token ids from {self.vocab_size:,} on, beyond the vocabulary")
        return prompt, answer  # type: ignore[return-value]
