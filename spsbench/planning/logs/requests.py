"""Logs of served requests: files, pipes and folders, read line by line, and their token ids.

Lines that hold no usable request are left out and counted by reason (`formats`).
"""

import codecs
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from spsbench.errors import DataError, first_line
from spsbench.planning.logs.formats import (
    BATCH,
    LINES,
    LeftOutError,
    Request,
    fields_of,
    of_bench,
    of_conversation,
    of_line,
    prompt_of,
    temperature_of,
)
from spsbench.untrusted import MAX_VALUES, FieldError, NotJSONError, cut, open_untrusted, parse_json

LINE_BYTES = 64 << 20  # of a line; a longer one is left out
BLANKS = re.compile(r"[ \t\r\n,]*+")
SURROGATE = re.compile("[\ud800-\udfff]")
CHUNK = 1 << 20  # bytes of a document that are read at once
MAX_REASONS = 64
OTHER_REASONS = "other reasons"
WHAT = "a log of served requests, or the folder of a run"


@dataclass(slots=True)
class LogReader:
    """The requests of some files, in the order of their lines.

    Answers of an OpenAI batch that come before their requests wait for them.

    Args:
        paths: files, `-` for standard input, or pipes; gzip is recognised by its first bytes.
        prompts: prompts by id or by number, for logs that hold none.
        folders: reads a folder; None: folders are refused.

    Attributes:
        left_out: how many lines were left out, by reason.
        formats: names of the formats that were read.
    """

    paths: Sequence[Path]
    prompts: Mapping[str, str] = field(default_factory=dict)
    folders: Callable[[Path], Iterator["Request"]] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    total: int = 0  # bytes of all files; 0 where they are pipes
    done: int = 0  # bytes read so far
    _sent: dict[str, Any] = field(default_factory=dict)  # custom_id -> request; None = two
    _answered: set[str] = field(default_factory=set)  # custom_ids of answers with a request
    _waiting: list[tuple[str, Request]] = field(default_factory=list)  # custom_id, answer

    def __post_init__(self) -> None:
        files = [path for path in self.paths if path.is_file()]
        whole = len(files) == len(self.paths)
        self.total = sum(path.stat().st_size for path in files) if whole else 0

    def __str__(self) -> str:
        return f"{100 * self.done / self.total:.0f} % of the log" if self.total else "the log"

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests():
            if request.prompt is None and self.prompts:
                request = replace(request, prompt=self.prompts.get(request.id))
            yield request

    def leave_out(self, reason: object, fields: str = "") -> None:
        """Count a line that holds no usable request, with the fields that it has."""
        words = f"{reason}; {fields}" if fields else str(reason)
        if words not in self.left_out and len(self.left_out) >= MAX_REASONS:
            words = OTHER_REASONS
        self.left_out[words] += 1

    def _requests(self) -> Iterator[Request]:
        before = 0
        for path in self.paths:
            if path.is_dir() and self.folders is not None:
                self.formats["run of sps bench"] += 1
                yield from self.folders(path)
                continue
            standard = nullcontext((sys.stdin.buffer, sys.stdin.buffer))
            with standard if str(path) == "-" else open_untrusted(path, WHAT) as (file, raw):
                for number, value in self._objects(file, path):
                    if self.total:
                        self.done = before + raw.tell()
                    data = value.get("data") if isinstance(value, dict) else None  # of an API
                    for place, entry in enumerate(data if isinstance(data, list) else [value]):
                        try:
                            yield from self._of(entry, number + place)
                        except LeftOutError as reason:
                            self.leave_out(reason, fields_of(entry))
                        except RecursionError:
                            self.leave_out("JSON nested too deeply")
            before = self.done
        for custom_id, answer in self._waiting:
            try:
                yield self._joined(custom_id, answer)
            except LeftOutError as reason:
                self.leave_out(reason, answer.fields)

    def _of(self, entry: object, number: int) -> Iterator[Request]:
        if isinstance(entry, list):
            entry = {"messages": entry}
        if not isinstance(entry, dict):
            raise LeftOutError("no JSON object")
        if "conversations" in entry:
            self.formats["ShareGPT conversations"] += 1
            yield from of_conversation(entry, number)
        elif "generated_texts" in entry:
            self.formats["vllm bench serve"] += 1
            yield from of_bench(entry, number)
        elif "custom_id" not in entry or ("body" in entry and "response" in entry):
            yield from self._counted(LINES, of_line(entry, number))
        elif "body" in entry:
            self._keep(str(entry["custom_id"]), entry["body"])
        elif isinstance(entry.get("response"), dict) and "body" in entry["response"]:
            for answer in self._counted(BATCH, of_line(entry, number)):
                custom_id = str(entry["custom_id"])
                if custom_id in self._sent and not self._waiting:
                    self._answered.add(custom_id)
                    yield self._joined(custom_id, answer)
                else:
                    self._waiting.append((custom_id, answer))
        else:
            yield from self._counted(LINES, of_line(entry, number))

    def _counted(self, form: str, answers: Iterator[Request]) -> Iterator[Request]:
        for place, answer in enumerate(answers):
            self.formats[form] += not place
            yield answer

    def _keep(self, custom_id: str, body: object) -> None:
        """Keep the prompt of a batch's request until its answer comes.

        An id that names another request is that of a later batch if the first was answered.
        """
        temperature = temperature_of(body) if isinstance(body, dict) else None
        sent = prompt_of(body), temperature
        if custom_id in self._sent and custom_id not in self._answered:
            sent = sent if sent == self._sent[custom_id] else None  # type: ignore[assignment]
        self._sent[custom_id] = sent
        self._answered.discard(custom_id)

    def _joined(self, custom_id: str, answer: Request) -> Request:
        """Return an answer with the prompt and temperature of its request.

        Raises:
            LeftOutError: two requests have the id.
        """
        sent = self._sent.get(custom_id, (None, None))
        if sent is None:
            raise LeftOutError("a custom_id that two requests have")
        prompt, temperature = sent
        return replace(
            answer,
            prompt=answer.prompt if prompt is None else prompt,
            temperature=answer.temperature if temperature is None else temperature,
        )

    def _objects(self, file: IO[bytes], path: Path) -> Iterator[tuple[int, object]]:
        """Yield the objects of a file with their numbers: one a line, or those of a document."""
        number, line = 0, file.readline(LINE_BYTES).removeprefix(codecs.BOM_UTF8)
        while line and not line.strip():
            number, line = number + 1, file.readline(LINE_BYTES)
        begin = line.lstrip()[:1]
        if begin == b"[" or (begin == b"{" and line.strip() == b"{"):
            yield from enumerate(document(line, file, path))
            return
        while line:
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                self.leave_out(f"a line above {LINE_BYTES >> 20} MiB")
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES)
            elif line.strip():
                try:
                    yield number, parse_json(line, strict=False, limit=LINE_BYTES)
                except NotJSONError:
                    cut_off = "" if line.endswith(b"\n") else " (the last line, cut off)"
                    self.leave_out(f"no JSON{cut_off}")
                except FieldError as error:
                    self.leave_out(error)
            number += 1
            line = file.readline(LINE_BYTES)


def document(first: bytes, file: IO[bytes], path: Path) -> Iterator[object]:
    """Yield the values of a JSON document, those of a list one by one: one is in memory at a time.

    Args:
        first: the bytes that were read already.

    Raises:
        DataError: no JSON, or a value beyond the bounds.
    """
    decode = codecs.getincrementaldecoder("utf-8")().decode
    scan = json.JSONDecoder().raw_decode
    text, at, ended, opened = "", 0, False, False
    start = io.BytesIO(first)
    piece = start.read(CHUNK)
    try:
        while True:
            text, at, ended = text[at:] + decode(piece, not piece), 0, not piece
            if len(text) > LINE_BYTES or sum(map(text.count, ",[{")) > MAX_VALUES:
                raise FieldError(f"a value above {LINE_BYTES >> 20} MiB or {MAX_VALUES:,} values")
            while (at := BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
                if text[at] == ("]" if opened else "["):
                    at, opened = at + 1, not opened
                    continue
                try:
                    value, at = scan(text, at)
                except ValueError:
                    if ended:
                        raise
                    break
                yield value
            if ended:
                break
            size = max(CHUNK, len(text) - at)
            piece = start.read(size) or file.read(size)
        if opened:
            raise FieldError("its list has no end")
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"no JSON ({cut(str(path))}: {first_line(error)}): expected a list of requests, or "
            "one a line, as jq -c '.[]' writes it"
        ) from error


class Tokens(NamedTuple):
    """Turns requests into ids.

    Args:
        tokenizer: of the `tokenizers` library; None where the log must hold ids.
        vocab_size: ids below it exist; None where that is unknown.
    """

    tokenizer: Any = None
    vocab_size: int | None = None

    def of(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the ids of prompt and answer.

        Raises:
            LeftOutError: there are none, or ids beyond the vocabulary.
        """
        answer = self._ids(request.answer)
        if answer is None:
            raise LeftOutError("texts without token ids, and no tokenizer")
        prompt = self._ids(request.prompt or ()) or []
        if not answer:
            raise LeftOutError("an empty answer")
        if len(answer) <= request.first:
            raise LeftOutError("an answer of one token, which the pass over the prompt gives")
        if self.vocab_size is not None and max([*prompt, *answer]) >= self.vocab_size:
            raise LeftOutError(f"token ids from {self.vocab_size:,} on, beyond the vocabulary")
        return prompt, answer

    def _ids(self, part: str | Sequence[int]) -> list[int] | None:
        if not isinstance(part, str):
            return list(part)
        if not part.isascii() and SURROGATE.search(part):
            raise LeftOutError("a text with half a surrogate pair")
        if self.tokenizer is None:
            return None
        return list(self.tokenizer.encode(part, add_special_tokens=False).ids)
